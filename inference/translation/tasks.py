"""The Celery side. As for batches, the queue is the table, and a message only says "look"."""

import logging
import threading

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down
from django.conf import settings

from inference.batches.models import LEASE_SECONDS, LeaseLost
from inference.translation import runner
from inference.translation.actions import LOOK, MESSAGE_SECONDS, expire, nudge
from inference.translation.models import TranslationJob

log = logging.getLogger(__name__)

# One at a time: it keeps an engine busy, and holds one of the worker's threads. Jobs take turns.
RUNNING_JOBS = 1
FAILED_TURN_SECONDS = 5.0  # before the next turn of whichever job, so that a failing one is not tried all the time

_stopping = threading.Event()


@shared_task(name=LOOK, expires=MESSAGE_SECONDS)
def queue_translations() -> None:
    """Hand out the jobs whose turn it is, as many as may run."""
    free = max(RUNNING_JOBS - TranslationJob.objects.leased().count(), 0)
    for key in TranslationJob.objects.waiting().values_list("key", flat=True)[:free]:
        run_translation.delay(key)


@shared_task(expires=MESSAGE_SECONDS)
def run_translation(key: str) -> None:
    job = TranslationJob.objects.claim(key)
    if job is None:
        return
    pause = 0.0
    try:
        runner.run(job, _stopping)
    except LeaseLost:
        log.warning("translation %s: deleted, or another worker has it now", key)
    except Exception:  # the database was away, say: the other jobs must not wait for this one
        log.exception("translation %s: its turn has failed", key)
        pause = FAILED_TURN_SECONDS
        job.put_behind()
    finally:
        job.release()
    if not _stopping.is_set():
        nudge(pause)


@shared_task
def remove_old_translations() -> None:
    """Delete the jobs that were over TRANSLATION_TTL_DAYS ago."""
    count = expire(settings.RWKV.translation_ttl_days)
    if count:
        log.info("deleted %d translation jobs of more than %g days ago", count, settings.RWKV.translation_ttl_days)


@worker_ready.connect
def resume(**kwargs: object) -> None:
    """Take on what is waiting, and once its lease is over, what a worker that died was running."""
    nudge()
    nudge(LEASE_SECONDS + 1)


@worker_shutting_down.connect
def stop(**kwargs: object) -> None:
    """A turn stops at once, and whoever claims the job next goes on."""
    _stopping.set()
