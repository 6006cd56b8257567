"""What clients and operators do with files and jobs. Callers translate the exceptions."""

import logging
import re
from datetime import timedelta

from celery import current_app
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.batches import storage
from inference.batches.models import CANCELLABLE, BatchJob, Status, StoredFile

log = logging.getLogger(__name__)

LOOK = "inference.batches.tasks.queue_batches"
MESSAGE_SECONDS = 60.0  # a message that no worker took in this time is repeated by the schedule

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_WINDOW = timedelta(days=30)


class FileInUse(Exception):
    """A job that is not over reads the file."""


class NotCancellable(Exception):
    """The job is over, or all its lines are answered."""


def parse_window(text: str) -> timedelta:
    """ "24h" and the like, up to LONGEST_WINDOW. Raises ValueError."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    window = timedelta(seconds=int(match[1]) * SECONDS[match[2]]) if match else None
    if window is None or window > LONGEST_WINDOW:
        raise ValueError(f'expected a time like "24h" or "90m", at most {LONGEST_WINDOW.days} days, got {text!r:.40}')
    return window


def create_batch(
    *, owner: str, input_file_key: str, endpoint: str, completion_window: str, metadata: dict[str, str] | None = None
) -> BatchJob:
    """Queue a job. Raises StoredFile.DoesNotExist, and ValueError for a bad window."""
    now = timezone.now()
    expires_at = now + parse_window(completion_window)
    with transaction.atomic():
        # Locked, so that it cannot be deleted between this look at it and the job.
        files = StoredFile.objects.present().select_for_update()
        job = BatchJob.objects.create(
            owner=owner,
            endpoint=endpoint,
            completion_window=completion_window,
            metadata=metadata,
            created_at=now,
            input_file=files.get(key=input_file_key, owner=owner),
            expires_at=expires_at,
        )
    nudge()
    return job


def cancel_batch(job: BatchJob) -> None:
    """Ask for the end of a job; `job` follows. Raises NotCancellable."""
    now = timezone.now()
    changed = BatchJob.objects.filter(pk=job.pk, status__in=CANCELLABLE).update(
        status=Status.CANCELLING, cancelling_at=now
    )
    job.refresh_from_db()
    if changed:
        nudge()
    elif job.status not in (Status.CANCELLING, Status.CANCELLED):
        raise NotCancellable(f"a batch that is {job.status} cannot be cancelled")


def delete_file(file: StoredFile) -> None:
    """Delete the content; the row stays, for the jobs that name it. Raises FileInUse, OSError."""
    with transaction.atomic():
        StoredFile.objects.select_for_update().get(pk=file.pk)
        if BatchJob.objects.open().filter(input_file=file).exists():
            raise FileInUse("a batch that is not over reads this file")
        StoredFile.objects.filter(pk=file.pk).update(deleted_at=timezone.now())
        storage.remove(file.key)  # before the commit: a file that is deleted cannot be deleted again


def remove_abandoned_files() -> None:
    """Delete what uploads and jobs that were killed left on disk."""
    storage.remove_abandoned(set(StoredFile.objects.present().values_list("key", flat=True)))


def nudge(delay: float = 0.0) -> None:
    """Have the workers look for jobs after `delay` seconds, rather than at the next tick of the schedule."""
    try:
        current_app.send_task(LOOK, countdown=delay, expires=delay + MESSAGE_SECONDS)
    except OperationalError as error:
        log.warning("batch jobs wait for the schedule, because Redis is away: %s", error)
