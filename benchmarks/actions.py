"""What operators and the schedule do with scenarios and runs. Callers translate the exceptions."""

import logging
import secrets

from celery import current_app
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from benchmarks.loadgen.sweep import in_random_order
from benchmarks.models import Baseline, Origin, Run, Scenario, Status

log = logging.getLogger(__name__)

LOOK = "benchmarks.tasks.execute_run"
JUDGE = "benchmarks.tasks.judge_series"
MESSAGE_SECONDS = 60.0  # a message that no worker took in this time is repeated by the schedule


class NotPossible(Exception):
    """The action does not fit the state of the run; the message says why."""


def queue_scenario(scenario: Scenario, *, origin: Origin, nudging: bool = True) -> list[Run]:
    """Queue every run of the scenario: each value of its sweep, as often as it is repeated.

    Repeats go round by round, each in an order of its own, so that a machine that gets warmer does not look like an
    effect of the swept value.
    Each run has a seed of its own, by its number in the series: the same prompts again would measure the prefix cache.
    Raises NotPossible while runs of the scenario are open: a schedule that is faster than its runs must not pile up.
    """
    rounds = range(1, scenario.repeats + 1)
    values = scenario.sweep_values or [None]
    points = [(one, value) for one in rounds for value in in_random_order(values, scenario.seed + one)]
    with transaction.atomic():
        Scenario.objects.select_for_update().get(pk=scenario.pk)  # who starts it at the same time looks after us
        if scenario.runs.open().exists():
            raise NotPossible(f"{scenario} has runs that are not over yet")
        series = _new_series()
        runs = [
            Run.objects.create(
                scenario=scenario,
                target=scenario.target,
                kind=scenario.kind,
                origin=origin,
                series=series,
                sweep_value=_number(value),
                repeat=repeat,
                tags=scenario.tags,
                configuration=freeze(scenario, value, number=number),
            )
            for number, (repeat, value) in enumerate(points)
        ]
    if nudging:
        nudge()
    return runs


def freeze(scenario: Scenario, sweep_value: object = None, *, number: int = 0) -> dict[str, object]:
    """Everything that a run depends on, as it is now. No secret is among it: keys have only names here.

    `number` is the run's place in its series: with the prompts of the one before it would measure the prefix cache.
    """
    dataset = scenario.dataset
    own_prompts = {"prompt_seed": scenario.seed + number} if number else {}
    return {
        "scenario": scenario.name,
        "target": scenario.target.name,
        "api_key_variable": scenario.target.api_key_variable,
        "dataset": dataset and {"name": dataset.name, "sha256": dataset.sha256, "rows": dataset.rows},
        "max_seconds": scenario.max_seconds,
        "sweep_option": scenario.sweep_option,
        "slos": scenario.slos,
        "options": {**scenario.options(sweep_value), **own_prompts},
    }


def run_again(run: Run) -> Run:
    """Queue a copy with the very same configuration, in a series of its own.

    Raises NotPossible for a run that was not made here.
    """
    if "options" not in run.configuration:
        raise NotPossible("it was not configured here, so it cannot be run again here")
    copy = Run.objects.create(
        scenario=run.scenario,
        target=run.target,
        kind=run.kind,
        origin=Origin.ADMIN,
        series=_new_series(),
        sweep_value=run.sweep_value,
        tags=run.tags,
        configuration={name: value for name, value in run.configuration.items() if name != "profile"},
    )
    nudge()
    return copy


def cancel_run(run: Run) -> None:
    """End a queued run now, and ask for the end of a running one; `run` follows. Raises NotPossible."""
    waiting = Run.objects.filter(pk=run.pk, status=Status.QUEUED)
    if waiting.update(status=Status.CANCELLED, cancel_requested=True, finished=timezone.now()):
        _judge_repeats(run)
    else:
        asked = Run.objects.filter(pk=run.pk, status=Status.RUNNING).update(cancel_requested=True)
        if not asked:
            run.refresh_from_db()
            raise NotPossible(f"a run that is {run.status} cannot be cancelled")
    run.refresh_from_db()


def pin_baseline(run: Run, *, by: str) -> Baseline:
    """Measure the later runs of the scenario against this one. Raises NotPossible."""
    if run.scenario is None or run.status != Status.DONE:
        raise NotPossible("a baseline is a run that is done, and belongs to a scenario")
    baseline, _ = Baseline.objects.update_or_create(scenario=run.scenario, defaults={"run": run, "set_by": by})
    return baseline


def nudge(delay: float = 0.0) -> None:
    """Have a worker look for a queued run after `delay` seconds, rather than at the next tick of the schedule."""
    try:
        current_app.send_task(LOOK, countdown=delay, expires=delay + MESSAGE_SECONDS)
    except OperationalError as error:
        log.warning("queued runs wait for the schedule, because Redis is away: %s", error)


def _judge_repeats(run: Run) -> None:
    """Have a worker judge the repeats of a run that ended without one: they may have waited for it alone."""
    if run.waits_for_repeats() or not run.repeats().exists():
        return
    try:
        current_app.send_task(JUDGE, kwargs={"run": run.pk})
    except OperationalError as error:
        log.warning("the repeats of %s are not judged together, because Redis is away: %s", run, error)


def _new_series() -> str:
    return f"series-{secrets.token_hex(6)}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
