"""What operators and the schedule do with sweeps and eval runs. Callers translate the exceptions."""

import logging
import secrets

from celery import current_app
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from benchmarks.evals.models import EvalBaseline, EvalRun
from benchmarks.evals.sweeps import EvalSweep
from benchmarks.models.runs import Status

log = logging.getLogger(__name__)

LOOK = "benchmarks.evals.tasks.execute_eval"
MESSAGE_SECONDS = 60.0  # a message that no worker took in this time is repeated by the schedule
GOES_ON = (Status.FAILED, Status.CANCELLED, Status.LOST)


class NotPossible(Exception):
    """The action does not fit the state of the run; the message says why."""


def queue_sweep(sweep: EvalSweep) -> list[EvalRun]:
    """Queue a run for each entry. Raises NotPossible while runs of the sweep are open: they must not pile up."""
    with transaction.atomic():
        EvalSweep.objects.select_for_update().get(pk=sweep.pk)  # who starts it at the same time looks after us
        if sweep.runs.open().exists():
            raise NotPossible(f"{sweep} has runs that are not over yet")
        series = f"series-{secrets.token_hex(6)}"
        runs = [
            EvalRun.objects.create(
                sweep=sweep,
                series=series,
                task=sweep.task,
                label=configuration["label"],
                base_url=configuration["base_url"],
                model=configuration["model"],
                configuration=configuration,
            )
            for configuration in sweep.configurations()
        ]
    nudge()
    return runs


def cancel_run(run: EvalRun) -> None:
    """End a queued run now, and ask for the end of a running one; `run` follows. Raises NotPossible."""
    waiting = EvalRun.objects.filter(pk=run.pk, status=Status.QUEUED)
    if not waiting.update(status=Status.CANCELLED, cancel_requested=True, finished=timezone.now()):
        asked = EvalRun.objects.filter(pk=run.pk, status=Status.RUNNING).update(cancel_requested=True)
        if not asked:
            run.refresh_from_db()
            raise NotPossible(f"a run that is {run.status} cannot be cancelled")
    run.refresh_from_db()


def resume_run(run: EvalRun) -> None:
    """Queue a run that did not get to its end; it goes on behind its items. Raises NotPossible."""
    ended = EvalRun.objects.filter(pk=run.pk, status__in=GOES_ON)
    if not ended.update(status=Status.QUEUED, cancel_requested=False, error="", finished=None):
        run.refresh_from_db()
        raise NotPossible(f"a run that is {run.status} cannot go on")
    run.refresh_from_db()
    nudge()


def pin_baseline(run: EvalRun, *, by: str) -> EvalBaseline:
    """Hold the later runs of its sweep and label against this one. Raises NotPossible."""
    if run.sweep is None or run.status != Status.DONE:
        raise NotPossible("a baseline is a run that is done, and belongs to a sweep")
    values = {"run": run, "set_by": by}
    baseline, _ = EvalBaseline.objects.update_or_create(sweep=run.sweep, label=run.label, defaults=values)
    return baseline


def unpin_baseline(run: EvalRun) -> None:
    """Raises NotPossible for a run that is no baseline."""
    if not EvalBaseline.objects.filter(run=run).delete()[0]:
        raise NotPossible("it is no baseline")


def nudge() -> None:
    """Have a worker look for a queued run now, rather than at the next tick of the schedule."""
    try:
        current_app.send_task(LOOK, expires=MESSAGE_SECONDS)
    except OperationalError as error:
        log.warning("queued evals wait for the schedule, because Redis is away: %s", error)
