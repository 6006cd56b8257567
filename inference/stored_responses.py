"""What the Responses API keeps for later requests: one row for each response."""

from django.db import models
from django.utils import timezone


class StoredResponseQuerySet(models.QuerySet["StoredResponse"]):
    def present(self) -> "StoredResponseQuerySet":
        return self.filter(expires_at__gt=timezone.now())

    def expired(self) -> "StoredResponseQuerySet":
        return self.filter(expires_at__lte=timezone.now())


class StoredResponse(models.Model):
    """`content` is text that is JSON, and no JSON column: PostgreSQL's does not hold every text."""

    key = models.CharField(max_length=64, unique=True)
    owner = models.CharField(max_length=100, help_text="The caller who may see it.")
    content = models.TextField()
    expires_at = models.DateTimeField(db_index=True)

    objects = StoredResponseQuerySet.as_manager()

    def __str__(self) -> str:
        return self.key
