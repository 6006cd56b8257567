"""Files that clients uploaded or jobs wrote, batch jobs, and the answers of a job that still runs.

Only the rows are in the database; a file's content is on disk (`inference.batches.storage`).
"""

import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from inference.batches import storage

KEY_LENGTH = 64
LEASE_SECONDS = 15.0  # a job whose runner was silent for this long belongs to whoever claims it next


def new_file_key() -> str:
    return f"file-{secrets.token_hex(12)}"


def new_batch_key() -> str:
    return f"batch_{secrets.token_hex(12)}"


class Purpose(models.TextChoices):
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


class StoredFileQuerySet(models.QuerySet["StoredFile"]):
    def present(self) -> "StoredFileQuerySet":
        return self.filter(deleted_at=None)


class StoredFile(models.Model):
    """A file's row outlives its content, so that a batch can always name its input."""

    key = models.CharField(max_length=KEY_LENGTH, unique=True, default=new_file_key, editable=False)
    owner = models.CharField(max_length=100, help_text="The caller who may see it.")
    purpose = models.CharField(max_length=20, choices=Purpose)
    filename = models.CharField(max_length=255)
    bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = StoredFileQuerySet.as_manager()

    class Meta:
        verbose_name = "batch file"
        ordering = ["-pk"]
        indexes = [models.Index(fields=["owner", "-id"], name="storedfile_owner")]
        constraints = [models.CheckConstraint(condition=Q(purpose__in=Purpose.values), name="storedfile_purpose")]

    def __str__(self) -> str:
        return f"{self.filename} ({self.key})"

    @property
    def path(self) -> Path:
        return storage.path_of(self.key)


class Status(models.TextChoices):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)
CANCELLABLE = (Status.VALIDATING, Status.IN_PROGRESS)


class LeaseLost(Exception):
    """Another runner has the job now: whoever sees this must not write to it any more."""


class BatchJobQuerySet(models.QuerySet["BatchJob"]):
    def open(self) -> "BatchJobQuerySet":
        return self.filter(status__in=OPEN)

    def leased(self) -> "BatchJobQuerySet":
        return self.open().filter(under_lease())

    def waiting(self) -> "BatchJobQuerySet":
        """Open jobs that nobody runs, the oldest first."""
        return self.open().exclude(under_lease()).order_by("pk")

    def claim(self, key: str) -> "BatchJob | None":
        """The job with a lease for the caller alone; None when it is over or another runner has it."""
        lease = secrets.token_hex(16)
        claimed = self.waiting().filter(key=key).update(lease=lease, lease_until=lease_end())
        return self.select_related("input_file").get(key=key, lease=lease) if claimed else None


class BatchJob(models.Model):
    key = models.CharField(max_length=KEY_LENGTH, unique=True, default=new_batch_key, editable=False)
    owner = models.CharField(max_length=100, help_text="The caller who may see it.")
    endpoint = models.CharField(max_length=100)
    model = models.CharField(max_length=200, blank=True, help_text="As the first line names it.")
    status = models.CharField(max_length=20, choices=Status, default=Status.VALIDATING)
    completion_window = models.CharField(max_length=20)
    metadata = models.JSONField(null=True, blank=True)
    errors = models.JSONField(default=list, blank=True, help_text="Why the input was refused.")

    input_file = models.ForeignKey(StoredFile, models.PROTECT, related_name="+")
    output_file = models.ForeignKey(StoredFile, models.PROTECT, related_name="+", null=True, blank=True)
    error_file = models.ForeignKey(StoredFile, models.PROTECT, related_name="+", null=True, blank=True)

    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)

    created_at = models.DateTimeField(default=timezone.now)
    in_progress_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField()
    finalizing_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    lease = models.CharField(max_length=32, blank=True, editable=False)
    lease_until = models.DateTimeField(null=True, blank=True, editable=False)

    objects = BatchJobQuerySet.as_manager()

    class Meta:
        verbose_name = "batch job"
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["owner", "-id"], name="batchjob_owner"),
            models.Index(fields=["id"], name="batchjob_open", condition=Q(status__in=OPEN)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="batchjob_status"),
            models.CheckConstraint(condition=Q(total__gte=F("completed") + F("failed")), name="batchjob_counts"),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def is_past_its_window(self) -> bool:
        return timezone.now() >= self.expires_at

    def write(self, *among: Status, **values: Any) -> bool:
        """Change the row under this runner's lease, which is renewed; the fields of `self` follow.

        With `among`, only while the row's status is one of these: False says that it was not.
        Raises LeaseLost.
        """
        mine = BatchJob.objects.filter(pk=self.pk, lease=self.lease)
        rows = mine.filter(status__in=among) if among else mine
        changed = rows.update(lease_until=lease_end(), **values)
        if not changed and not mine.exists():
            raise LeaseLost(self.key)
        self.refresh_from_db(fields=["status", "total", "completed", "failed", *values])
        return bool(changed)

    def release(self) -> None:
        """Give the lease back. Without effect when another runner has it already."""
        BatchJob.objects.filter(pk=self.pk, lease=self.lease).update(lease="", lease_until=None)


class BatchLine(models.Model):
    """The answer to one line of a job's input: the very line of the output or error file.

    Answers move to the output file when the job ends; the failed ones also stay here, for the admin.
    """

    batch = models.ForeignKey(BatchJob, models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="Line of the input file, from 1.")
    failed = models.BooleanField()
    answer = models.TextField()

    class Meta:
        ordering = ["batch", "number"]
        constraints = [
            models.UniqueConstraint(fields=["batch", "number"], name="batchline_answered_once"),
        ]

    def __str__(self) -> str:
        return f"line {self.number} of {self.batch_id}"


def under_lease() -> Q:
    """What somebody runs. A lease longer than any that is given is from before the clock was set back: it is void."""
    now = timezone.now()
    return Q(lease_until__range=(now, now + timedelta(seconds=2 * LEASE_SECONDS)))


def lease_end() -> Any:
    return timezone.now() + timedelta(seconds=LEASE_SECONDS)
