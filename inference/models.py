"""API keys, and a table-less model that gives the engines page its place in the admin."""

import hashlib
import logging
import secrets
from datetime import timedelta
from typing import Any

from django.core.validators import MinValueValidator
from django.db import DatabaseError, models
from django.db.models import Q
from django.utils import timezone

from inference.batches.models import BatchJob, BatchLine, StoredFile  # noqa: F401  (tables of this app)
from inference.stored_responses import StoredResponse  # noqa: F401
from inference.translation.models import TranslationJob, TranslationLine, TranslationSource  # noqa: F401

log = logging.getLogger(__name__)

SECRET_BYTES = 32  # 256 random bits: too many to guess, so a fast hash protects them well enough
SHOWN_CHARACTERS = 11
LAST_USED_RESOLUTION = timedelta(minutes=1)  # a write per request would be the costliest part of one


def hash_secret(secret: str) -> str:
    # A client may send anything: JSON can hold half of a surrogate pair.
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def usable(self) -> "ApiKeyQuerySet":
        return self.filter(enabled=True).filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))

    def expired(self) -> "ApiKeyQuerySet":
        return self.filter(enabled=True, expires_at__lte=timezone.now())

    def issue(self, **fields: Any) -> tuple["ApiKey", str]:
        """Save a new key and return it with its secret, which cannot be had again."""
        key = self.model(**fields)
        secret = key.draw_secret()
        key.save(using=self.db)
        return key, secret

    def verify(self, raw: str) -> "ApiKey | None":
        """The usable key whose secret is `raw`, found by its hash, or None."""
        key = self.usable().filter(hash=hash_secret(raw)).first()
        if key:
            key.note_use()
        return key


class ApiKey(models.Model):
    name = models.CharField(max_length=100, help_text="Who or what uses this key.")
    prefix = models.CharField(max_length=SHOWN_CHARACTERS, editable=False, help_text="How the key begins.")
    hash = models.CharField(max_length=64, unique=True, editable=False)
    enabled = models.BooleanField(default=True)
    created = models.DateTimeField(auto_now_add=True)
    last_used = models.DateTimeField(null=True, blank=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never.")
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: no limit."
    )
    max_concurrent = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Requests at one time. Empty: no limit."
    )
    notes = models.TextField(blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "API key"
        ordering = ["name", "pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(requests_per_minute=None) | Q(requests_per_minute__gte=1),
                name="apikey_requests_per_minute_positive",
            ),
            models.CheckConstraint(
                condition=Q(max_concurrent=None) | Q(max_concurrent__gte=1), name="apikey_max_concurrent_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def draw_secret(self) -> str:
        """Give this key a new secret and return it; only its hash and its beginning are kept."""
        secret = f"rwkv-{secrets.token_urlsafe(SECRET_BYTES)}"
        self.hash, self.prefix = hash_secret(secret), secret[:SHOWN_CHARACTERS]
        return secret

    def note_use(self) -> None:
        now = timezone.now()
        if self.last_used is None or now - self.last_used > LAST_USED_RESOLUTION:
            self.last_used = now
            try:
                type(self).objects.filter(pk=self.pk).update(last_used=now)
            except DatabaseError as error:  # the key is good all the same
                log.warning("the use of a key was not noted: %s", error)


class Engine(models.Model):
    """No table: the engines are in Redis. This is what the admin links to and grants permission on."""

    class Meta:
        managed = False
        default_permissions = ("view", "change")  # change: to cancel requests

    def __str__(self) -> str:
        return f"engine {self.pk}"
