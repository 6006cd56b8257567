"""Holds a finished eval against the rules for it.

A score has an uncertainty, so its raw value never fails by itself: an absolute rule fails when the
whole 95% interval is beyond the limit, a relative one when the documents that both runs answered
changed more than chance explains. What is beyond the limit otherwise is a warning.
"""

import logging
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from benchmarks.evals.baselines import baseline_of, first_of_series
from benchmarks.evals.comparison import Comparison, compare
from benchmarks.evals.models import EvalRun
from benchmarks.evals.rules import SCORES
from benchmarks.loadgen.gates import Outcome
from benchmarks.models.gates import Comparison as Bound
from benchmarks.models.gates import GateRule
from benchmarks.models.runs import Status, ended_lately

log = logging.getLogger(__name__)

SIGNIFICANT = 0.05

Found = tuple[Outcome, float | None, str]


def judge(run: EvalRun) -> None:
    """Write the outcome of each enabled rule for this eval into the run's `gates`. Only a done run is judged.

    The first run of a series may be the last one to end: the others, which are held against it, are judged again.
    """
    if run.status != Status.DONE:
        return
    _judge_one(run)
    first = first_of_series(run)
    if first and first.pk == run.pk:
        for other in EvalRun.objects.filter(series=run.series, status=Status.DONE).exclude(pk=run.pk):
            _judge_one(other)


def judge_left() -> None:
    """Judge the evals that ended lately and were not judged: their worker died then, or the database failed."""
    of_sweep = Q(sweep=None) | Q(sweep=OuterRef("sweep"))
    rules = GateRule.objects.filter(of_sweep, eval_task=OuterRef("task"), enabled=True)
    for run in EvalRun.objects.filter(ended_lately(), Exists(rules), status=Status.DONE, gates=[]).order_by("pk"):
        try:
            judge(run)
        except Exception:  # the others are judged all the same
            log.exception("%s could not be judged", run.key)


def _judge_one(run: EvalRun) -> None:
    rules = GateRule.objects.filter(Q(sweep=None) | Q(sweep=run.sweep_id), eval_task=run.task, enabled=True)
    with transaction.atomic():
        # Two workers may judge a run at one time. The one that comes later has seen the end of the other's run.
        EvalRun.objects.select_for_update().get(pk=run.pk)
        run.gates = [_outcome(rule, run) for rule in rules]
        run.save(update_fields=["gates"])


def _outcome(rule: GateRule, run: EvalRun) -> dict[str, Any]:
    outcome, value, words = _relative(rule, run) if rule.relative else _absolute(rule, run)
    return {"rule": str(rule), "outcome": outcome.value, "value": value, "words": words}


def _absolute(rule: GateRule, run: EvalRun) -> Found:
    value = run.summary.get(rule.metric)
    if not isinstance(value, int | float):
        return Outcome.UNKNOWN, None, f"the run has no {rule.metric}"
    if _allows(rule, value):
        return Outcome.PASS, value, f"{value:.6g}"
    interval = run.summary.get(f"{rule.metric}_ci95")
    if interval and any(_allows(rule, bound) for bound in interval if bound is not None):
        return Outcome.WARN, value, f"{value:.6g}, but the limit is within its 95% interval"
    if rule.metric in SCORES and not interval:
        return Outcome.WARN, value, f"{value:.6g}, but from too few documents for a 95% interval"
    return Outcome.FAIL, value, f"{value:.6g}"


def _relative(rule: GateRule, run: EvalRun) -> Found:
    baseline = baseline_of(run)
    before = baseline.summary.get(rule.metric) if baseline else None
    value = run.summary.get(rule.metric)
    if not baseline or not before or not isinstance(value, int | float):
        return Outcome.UNKNOWN, None, f"there is no {rule.metric} to compare"
    comparison = compare(baseline, run)
    if comparison.differences:
        return Outcome.UNKNOWN, None, f"{baseline} was asked otherwise: {_differences(comparison)}"
    if comparison.alone:
        return Outcome.UNKNOWN, None, f"{baseline} has not answered the same documents"
    percent = (value / before - 1) * 100
    words = f"{percent:+.2f}% against {baseline}"
    if _allows(rule, percent):
        return Outcome.PASS, percent, words
    p = _p(rule.metric, comparison)
    if p is None:
        return Outcome.WARN, percent, f"{words}, and there is no test whether chance explains it"
    if p >= SIGNIFICANT:
        return Outcome.WARN, percent, f"{words}, but chance explains the changes (p = {p:.3f})"
    return Outcome.FAIL, percent, f"{words} (p = {p:.2g})"


def _p(metric: str, comparison: Comparison) -> float | None:
    """How likely chance alone explains changes like these; None for a figure that is no score of documents."""
    if metric == "acc":
        return comparison.p
    return comparison.logprob_p if metric in SCORES else None


def _differences(comparison: Comparison) -> str:
    return ", ".join(f"{name} {before} → {after}" for name, before, after in comparison.differences)


def _allows(rule: GateRule, value: float) -> bool:
    return value <= rule.limit if rule.comparison == Bound.AT_MOST else value >= rule.limit
