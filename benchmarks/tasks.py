"""The Celery side: what the schedule starts, who executes the queue of runs, and what becomes of lost ones.

The queue is the table of runs. A message only says "look": it may be lost, doubled or late, because a run is claimed
in its row.
"""

import logging
import threading

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down
from django.conf import settings

from benchmarks import gating, processes, retention
from benchmarks.actions import JUDGE, LOOK, MESSAGE_SECONDS, NotPossible, nudge, queue_scenario
from benchmarks.evals import tasks as evals  # noqa: F401  (Celery looks for an app's tasks in this module alone)
from benchmarks.evals.models import EvalRun
from benchmarks.models import Origin, Run, Scenario, Status
from benchmarks.models.runs import LOST_SECONDS
from benchmarks.models.scenarios import RUN_SCENARIO

log = logging.getLogger(__name__)

_stopping = threading.Event()


@shared_task(name=RUN_SCENARIO)
def run_scenario(scenario: int, origin: str = Origin.SCHEDULE) -> None:
    """Queue the runs of a scenario, by its primary key."""
    found = Scenario.objects.select_related("target", "dataset").filter(pk=scenario).first()
    if found is None:
        log.warning("scenario %s was deleted, and something still starts it", scenario)
        return
    try:
        queue_scenario(found, origin=Origin(origin))
    except NotPossible as error:
        log.warning("left out: %s", error)


@shared_task(name=LOOK, expires=MESSAGE_SECONDS)
def execute_run() -> None:
    """Execute the oldest queued run, if nothing else loads a server; the next one follows in a message of its own."""
    if EvalRun.objects.filter(status=Status.RUNNING).exists():
        return
    run = Run.objects.claim_next()
    if run is None:
        return
    if EvalRun.objects.filter(status=Status.RUNNING).exists():  # it was claimed since we looked
        run.put_back()
        return
    processes.execute(run, _stopping)
    gating.judge_ended(run)
    log.info("%s: %s %s", run, run.status, run.error)
    if not _stopping.is_set():
        nudge()


@shared_task(expires=MESSAGE_SECONDS)
def tend_runs() -> None:
    """End the runs whose worker died, start what waits, and judge what a worker left unjudged."""
    for run in Run.objects.silent():
        if processes.end_lost(run):
            log.warning("%s was lost", run)
            gating.judge_ended(run)
    nudge()
    gating.judge_left()


@shared_task(name=JUDGE)
def judge_series(run: int) -> None:
    """Judge what was measured together with this run, by its primary key, which ended without a worker."""
    found = Run.objects.filter(pk=run).first()
    if found is not None:
        gating.judge_ended(found)


@shared_task
def remove_old_records() -> None:
    """Delete the requests and seconds of the runs that were over BENCHMARK_TTL_DAYS ago, and files that were left."""
    days = settings.RWKV.benchmark_ttl_days
    count = retention.remove_records(days)
    if count:
        log.info("deleted the requests of %d runs of more than %g days ago", count, days)
    if files := retention.remove_left_files():
        log.info("deleted %d files that runs had left", files)


@worker_ready.connect
def resume(**kwargs: object) -> None:
    """Start what waits, and once its supervisor has been silent for long enough, end what a dead worker was running."""
    nudge()
    tend_runs.apply_async(countdown=LOST_SECONDS + 1)


@worker_shutting_down.connect
def stop(**kwargs: object) -> None:
    """A run may take hours: its command is interrupted, and what it measured until then is kept."""
    _stopping.set()
