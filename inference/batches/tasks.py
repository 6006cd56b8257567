"""The Celery side: which jobs run, and that one goes on when its worker died.

The queue of jobs is the table. A message only says "look": it may be lost, doubled or late, because
a job is claimed with a lease in its row.
"""

import logging
import threading

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down
from django.db.models import Q
from django.utils import timezone

from inference.batches import runner
from inference.batches.actions import LOOK, MESSAGE_SECONDS, nudge, remove_abandoned_files
from inference.batches.models import LEASE_SECONDS, BatchJob, LeaseLost, Status

log = logging.getLogger(__name__)

# One at a time: a job's CONCURRENCY requests keep an engine busy, and it holds one of the worker's threads.
RUNNING_JOBS = 1

_stopping = threading.Event()


@shared_task(name=LOOK, expires=MESSAGE_SECONDS)
def queue_batches() -> None:
    """Hand out the oldest jobs that nobody runs, as many as may run, and all that only have to be closed."""
    over = Q(status=Status.CANCELLING) | Q(expires_at__lte=timezone.now())
    free = max(RUNNING_JOBS - BatchJob.objects.leased().exclude(over).count(), 0)
    waiting = BatchJob.objects.waiting().values_list("key", flat=True)
    for key in [*waiting.filter(over), *waiting.exclude(over)[:free]]:
        run_batch.delay(key)


@shared_task(expires=MESSAGE_SECONDS)
def run_batch(key: str) -> None:
    job = BatchJob.objects.claim(key)
    if job is None:
        return
    try:
        runner.run(job, _stopping)
    except LeaseLost:
        log.warning("batch %s: another worker has it now", key)
    finally:
        job.release()
    if not _stopping.is_set():
        nudge()


@worker_ready.connect
def resume(**kwargs: object) -> None:
    """Take on what is waiting, and once its lease is over, what a worker that died was running."""
    nudge()
    nudge(LEASE_SECONDS + 1)
    remove_abandoned_files()


@worker_shutting_down.connect
def stop(**kwargs: object) -> None:
    """A job may run for hours. It stops at once, and whoever claims it next goes on."""
    _stopping.set()
