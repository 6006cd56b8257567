"""Translation jobs: rows of the database alone, so that any worker can go on with any of them."""

import secrets
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from inference.batches.models import LeaseLost, lease_end, under_lease
from inference.translation.formats.document import Options

MAX_FILENAME = 255
MAX_ERROR = 500


def new_key() -> str:
    return secrets.token_hex(12)


class Status(models.TextChoices):
    QUEUED = "queued", _("waiting")
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("done")
    CANCELLED = "cancelled", _("cancelled")


OPEN = (Status.QUEUED, Status.RUNNING)


class LineStatus(models.TextChoices):
    WAITING = "waiting", _("waiting")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    SKIPPED = "skipped", _("cancelled")


OVER = (LineStatus.DONE, LineStatus.FAILED, LineStatus.SKIPPED)


class TranslationJobQuerySet(models.QuerySet["TranslationJob"]):
    def open(self) -> "TranslationJobQuerySet":
        return self.filter(status__in=OPEN)

    def waiting(self) -> "TranslationJobQuerySet":
        """Open jobs that nobody runs, in the order of their turns."""
        return self.open().exclude(under_lease()).order_by("queued_at", "pk")

    def leased(self) -> "TranslationJobQuerySet":
        return self.open().filter(under_lease())

    def claim(self, key: str) -> "TranslationJob | None":
        """The job, running, with a lease for the caller alone; None when it is over or another runner has it."""
        lease = secrets.token_hex(16)
        claim = {"lease": lease, "lease_until": lease_end(), "status": Status.RUNNING}
        claimed = self.waiting().order_by().filter(key=key).update(**claim)
        return self.get(key=key, lease=lease) if claimed else None

    def over_for(self, days: float) -> "TranslationJobQuerySet":
        return self.exclude(status__in=OPEN).filter(ended_at__lt=timezone.now() - timedelta(days=days))


class TranslationJob(models.Model):
    """`format`, `encoding`, `marked`, `column` and `header` are what the file is read and written by."""

    key = models.CharField(max_length=24, unique=True, default=new_key, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    filename = models.CharField(max_length=MAX_FILENAME, blank=True, help_text="Empty: pasted text.")
    format = models.CharField(max_length=10)
    encoding = models.CharField(max_length=10)
    marked = models.BooleanField(default=False, help_text="The file begins with a byte order mark.")
    column = models.CharField(max_length=200, blank=True)
    header = models.BooleanField(default=True)
    source_language = models.CharField(max_length=20)
    target_language = models.CharField(max_length=20)
    glossary = models.TextField(blank=True)

    status = models.CharField(max_length=20, choices=Status, default=Status.QUEUED)
    total = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField(default=timezone.now, help_text="When it last began to wait for its turn.")
    ended_at = models.DateTimeField(null=True, blank=True)

    lease = models.CharField(max_length=32, blank=True, editable=False)
    lease_until = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TranslationJobQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["user", "-id"], name="translationjob_user"),
            models.Index(fields=["queued_at"], name="translationjob_open", condition=Q(status__in=OPEN)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="translationjob_status"),
            models.CheckConstraint(condition=Q(total__gte=F("done") + F("failed")), name="translationjob_counts"),
        ]

    def __str__(self) -> str:
        return self.filename or self.key

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def options(self) -> Options:
        return Options(self.column, self.header)

    def write(self, **values: Any) -> bool:
        """Change the row under this runner's lease, which is renewed; the fields of `self` follow.

        False, and nothing is changed, when the job is not running any more. Raises LeaseLost.
        """
        mine = TranslationJob.objects.filter(pk=self.pk, lease=self.lease)
        changed = mine.filter(status=Status.RUNNING).update(lease_until=lease_end(), **values)
        if not changed and not mine.exists():
            raise LeaseLost(self.key)
        self.refresh_from_db(fields=["status", "done", "failed"])
        return bool(changed)

    def put_behind(self) -> None:
        """After the others that wait. Without effect when another runner has the job already, or it is over."""
        mine = TranslationJob.objects.open().filter(pk=self.pk, lease=self.lease)
        mine.update(status=Status.QUEUED, queued_at=timezone.now())

    def release(self) -> None:
        """Give the lease back. Without effect when another runner has it already."""
        TranslationJob.objects.filter(pk=self.pk, lease=self.lease).update(lease="", lease_until=None)


class TranslationSource(models.Model):
    """The text of a job's file. In a table of its own: only the download reads it."""

    job = models.OneToOneField(TranslationJob, models.CASCADE, primary_key=True, related_name="source")
    text = models.TextField()

    def __str__(self) -> str:
        return f"text of {self.job_id}"


class TranslationLine(models.Model):
    """One segment of a job's file, and what became of it."""

    job = models.ForeignKey(TranslationJob, models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="Place in the file, from 1.")
    source = models.TextField()
    status = models.CharField(max_length=10, choices=LineStatus, default=LineStatus.WAITING)
    translation = models.TextField(blank=True)
    error = models.CharField(max_length=MAX_ERROR, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job", "number"]
        indexes = [
            models.Index(fields=["job", "status", "number"], name="translationline_status"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="translationline_once"),
            models.CheckConstraint(condition=Q(status__in=LineStatus.values), name="translationline_status_known"),
        ]

    def __str__(self) -> str:
        return f"line {self.number} of {self.job_id}"
