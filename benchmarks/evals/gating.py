"""Holds a finished eval against the rules for it.

A score has an uncertainty, so its raw value never fails by itself: an absolute rule fails when the
whole 95% interval is beyond the limit, a relative one when the documents that changed sides are more
than chance explains. What is beyond the limit otherwise is a warning.
"""

from typing import Any

from benchmarks.evals.comparison import compare
from benchmarks.evals.models import EvalRun
from benchmarks.loadgen.gates import Outcome
from benchmarks.models.gates import Comparison as Bound
from benchmarks.models.gates import GateRule
from benchmarks.models.runs import Status

SIGNIFICANT = 0.05


def judge(run: EvalRun) -> None:
    """Write the outcome of each enabled rule for this eval into the run's `gates`. Only a done run is judged."""
    if run.status != Status.DONE:
        return
    rules = GateRule.objects.filter(eval_task=run.task, enabled=True)
    run.gates = [_judge(rule, run) for rule in rules]
    run.save(update_fields=["gates"])


def baseline_of(run: EvalRun) -> EvalRun | None:
    """The first run that was queued together with it, which a sweep's other runs are held against."""
    if not run.series:
        return None
    first = EvalRun.objects.filter(series=run.series).order_by("pk").first()
    return first if first and first.pk != run.pk and first.status == Status.DONE else None


def _judge(rule: GateRule, run: EvalRun) -> dict[str, Any]:
    outcome, value, words = _relative(rule, run) if rule.relative else _absolute(rule, run)
    return {"rule": str(rule), "outcome": outcome.value, "value": value, "words": words}


def _absolute(rule: GateRule, run: EvalRun) -> tuple[Outcome, float | None, str]:
    value = run.summary.get(rule.metric)
    if not isinstance(value, int | float):
        return Outcome.UNKNOWN, None, f"the run has no {rule.metric}"
    if _allows(rule, value):
        return Outcome.PASS, value, f"{value:.6g}"
    interval = run.summary.get(f"{rule.metric}_ci95")
    if interval and any(_allows(rule, bound) for bound in interval if bound is not None):
        return Outcome.WARN, value, f"{value:.6g}, but the limit is within its 95% interval"
    return Outcome.FAIL, value, f"{value:.6g}"


def _relative(rule: GateRule, run: EvalRun) -> tuple[Outcome, float | None, str]:
    baseline = baseline_of(run)
    before = baseline.summary.get(rule.metric) if baseline else None
    value = run.summary.get(rule.metric)
    if not baseline or not before or not isinstance(value, int | float):
        return Outcome.UNKNOWN, None, f"there is no {rule.metric} to compare"
    percent = (value / before - 1) * 100
    words = f"{percent:+.2f}% against {baseline}"
    if _allows(rule, percent):
        return Outcome.PASS, percent, words
    p = compare(baseline, run).p if rule.metric == "acc" else 0.0
    if p >= SIGNIFICANT:
        return Outcome.WARN, percent, f"{words}, but chance explains the flips (p = {p:.3f})"
    return Outcome.FAIL, percent, words


def _allows(rule: GateRule, value: float) -> bool:
    return value <= rule.limit if rule.comparison == Bound.AT_MOST else value >= rule.limit
