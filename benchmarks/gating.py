"""Holds finished runs against the gates of their scenario."""

import logging
from collections.abc import Sequence

from django.db import transaction
from django.db.models import Exists, OuterRef

from benchmarks.loadgen import compare, gates
from benchmarks.models import Baseline, GateResult, GateRule, Run, Status
from benchmarks.models.runs import ended_lately
from benchmarks.storage import load_result

log = logging.getLogger(__name__)


def judge_ended(run: Run) -> None:
    """Judge a run that has just ended: at once by itself, and with its repeats when it was the last of them."""
    if run.waits_for_repeats():
        judge(run)
        return
    repeats = list(run.repeats())
    if repeats:
        _judge(repeats)


def judge_left() -> None:
    """Judge the runs that ended lately and were not judged: their worker died then, or the database failed."""
    rules = GateRule.objects.filter(scenario=OuterRef("scenario"), enabled=True)
    results = GateResult.objects.filter(run=OuterRef("pk"))
    for run in Run.objects.measured().filter(ended_lately(), Exists(rules), ~Exists(results)).order_by("pk"):
        try:
            judge_ended(run)
        except Exception:  # the others are judged all the same
            log.exception("%s could not be judged", run)


def judge(run: Run) -> None:
    """With the repeats that are done so far. Only a run that is done can be judged."""
    if run.status == Status.DONE:
        _judge([run])


def _judge(runs: Sequence[Run]) -> None:
    """Write a result for each enabled rule of their scenario. These are repeats of one measurement, judged as one."""
    run = runs[-1]
    if run.scenario is None:
        return
    rules = list(run.scenario.gates.filter(enabled=True))
    if not rules:
        return
    found = gates.evaluate([as_rule(rule) for rule in rules], group_of(run), _baseline_for(run))
    with transaction.atomic():
        for rule, result in zip(rules, found, strict=True):
            values = {"outcome": result.outcome.value, "value": result.value, "words": result.words}
            for judged in runs:
                GateResult.objects.update_or_create(run=judged, rule=rule, defaults=values)


def as_rule(rule: GateRule) -> gates.GateRule:
    return gates.GateRule(rule.metric, gates.Direction(rule.comparison), rule.limit, rule.relative)


def group_of(run: Run) -> compare.Group:
    """The run with the repeats that were queued with it and are done, under the run's name."""
    return compare.Group(run.key, [load_result(pk) for pk in run.repeats().values_list("pk", flat=True)])


def _baseline_for(run: Run) -> compare.Group | None:
    """The pinned run's group; of a pinned sweep, the one with the same swept value. None without any, or for itself."""
    pinned = Baseline.objects.filter(scenario=run.scenario).select_related("run").first()
    if pinned is None:
        return None
    series = Run.objects.measured().filter(series=pinned.run.series) if pinned.run.series else Run.objects.none()
    same = series.filter(sweep_value=run.sweep_value).first() if run.sweep_value is not None else pinned.run
    if same is None or (same.pk == run.pk) or (run.series and same.series == run.series):
        return None
    return group_of(same)
