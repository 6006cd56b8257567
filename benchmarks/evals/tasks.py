"""The Celery side: sweeps by schedule, who executes the queue of runs, and what becomes of lost ones.

The queue is the table of runs. A message only says "look": it may be lost, doubled or late, because a
run is claimed in its row.
"""

import logging
import threading

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from benchmarks.evals import gating, process
from benchmarks.evals.actions import LOOK, MESSAGE_SECONDS, NotPossible, nudge, queue_sweep
from benchmarks.evals.models import EvalRun
from benchmarks.evals.sweeps import RUN_SWEEP, EvalSweep
from benchmarks.models.runs import LOST_SECONDS

log = logging.getLogger(__name__)

_stopping = threading.Event()


@shared_task(name=RUN_SWEEP)
def run_sweep(sweep: int) -> None:
    """Queue the runs of a sweep, by its primary key."""
    found = EvalSweep.objects.select_related("target").filter(pk=sweep).first()
    if found is None:
        log.warning("eval sweep %s was deleted, and something still starts it", sweep)
        return
    try:
        queue_sweep(found)
    except NotPossible as error:
        log.warning("left out: %s", error)


@shared_task(name=LOOK, expires=MESSAGE_SECONDS)
def execute_eval() -> None:
    """Execute the oldest queued run whose server is free; the next one follows in a message of its own."""
    run = EvalRun.objects.claim_next()
    if run is None:
        return
    process.execute(run, _stopping)
    gating.judge(run)
    log.info("%s: %s %s", run.key, run.status, run.error)
    if not _stopping.is_set():
        nudge()


@shared_task(expires=MESSAGE_SECONDS)
def tend_evals() -> None:
    """End the runs whose worker died, start what waits, and judge what a worker left unjudged.

    A lost run can be resumed.
    """
    for run in EvalRun.objects.silent():
        if run.lose():
            log.warning("%s was lost", run.key)
    nudge()
    gating.judge_left()


@worker_ready.connect
def resume(**kwargs: object) -> None:
    """Start what waits, and once a dead worker has been silent for long enough, end what it was running."""
    nudge()
    tend_evals.apply_async(countdown=LOST_SECONDS + 1)


@worker_shutting_down.connect
def stop(**kwargs: object) -> None:
    """A run may take hours: it is queued again, and goes on behind its items."""
    _stopping.set()
