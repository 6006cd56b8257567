"""Rules that a run must keep, each a limit of one figure: absolute, or as a change against a baseline.

Written as in `ttft.p99<=500`, `ttft.p99<=+10%` (at most 10% more than the baseline) and `output_throughput>=-5%`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.loadgen import figures
from benchmarks.loadgen.compare import Change, Group, Method, Verdict, change


class Direction(StrEnum):
    AT_MOST = "<="
    AT_LEAST = ">="


class Outcome(StrEnum):
    """WARN: beyond the limit, but not certainly so. UNKNOWN: a figure is missing."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "not comparable"


@dataclass(frozen=True)
class GateRule:
    """`limit` is in the figure's own unit, or in percent of change where `relative`.

    Raises ValueError for a metric that is not known.
    """

    metric: str
    comparison: Direction
    limit: float
    relative: bool = False

    def __post_init__(self) -> None:
        figures.figure(self.metric)

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{f'{self.limit:+g}%' if self.relative else f'{self.limit:g}'}"

    def allows(self, value: float) -> bool:
        return value <= self.limit if self.comparison is Direction.AT_MOST else value >= self.limit


@dataclass(frozen=True)
class GateResult:
    """`value` is what was held against the limit: the figure, or its change in percent."""

    rule: GateRule
    outcome: Outcome
    value: float | None
    words: str


def parse(text: str) -> GateRule:
    """Raises ValueError for text that is no rule."""
    match = re.fullmatch(r"\s*([\w.]+)\s*(<=|>=)\s*([+-]?\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is no rule; write it as ttft.p99<=500 or output_throughput>=-5%")
    metric, comparison, limit, percent = match.groups()
    return GateRule(metric, Direction(comparison), float(limit), relative=bool(percent))


def evaluate(rules: Sequence[GateRule], candidate: Group, baseline: Group | None = None) -> list[GateResult]:
    """The rules in order. A relative rule without a baseline is not comparable."""
    return [_relative(rule, candidate, baseline) if rule.relative else _absolute(rule, candidate) for rule in rules]


def worst(results: Sequence[GateResult]) -> Outcome:
    """What the rules say together; no rules pass."""
    order = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WARN)
    return next((one for one in order if any(result.outcome is one for result in results)), Outcome.PASS)


def _absolute(rule: GateRule, candidate: Group) -> GateResult:
    found = [figures.value(result.summary, rule.metric) for result in candidate.results]
    values = [value for value in found if value is not None]
    if not values:
        return GateResult(rule, Outcome.UNKNOWN, None, f"{candidate.label} has no {rule.metric}{_why_none(rule)}")
    value = sum(values) / len(values)
    outcome = Outcome.PASS if rule.allows(value) else Outcome.FAIL
    unit = figures.figure(rule.metric).unit
    runs = f" (mean of {len(values)} runs)" if len(values) > 1 else ""
    bound = "at most" if rule.comparison is Direction.AT_MOST else "at least"
    return GateResult(rule, outcome, value, f"{value:.6g} {unit}{runs}; {bound} {rule.limit:g} {unit} is allowed")


def _relative(rule: GateRule, candidate: Group, baseline: Group | None) -> GateResult:
    if baseline is None:
        return GateResult(rule, Outcome.UNKNOWN, None, "there is no baseline")
    found = change(baseline, candidate, rule.metric)
    if found.change is None:
        if found.baseline == 0:
            return GateResult(
                rule, Outcome.UNKNOWN, None, f"{rule.metric} is 0 in {baseline.label}: no percent of that"
            )
        missing = candidate.label if found.value is None else baseline.label
        return GateResult(rule, Outcome.UNKNOWN, None, f"{missing} has no {rule.metric}{_why_none(rule)}")
    percent = found.change * 100
    words = f"{percent:+.1f}% against {baseline.label}{_interval(found)}; {rule.limit:+g}% is allowed"
    if rule.allows(percent):
        return GateResult(rule, Outcome.PASS, percent, words)
    if _is_doubtful(rule, found):
        return GateResult(rule, Outcome.WARN, percent, f"{words}, which chance may explain: repeat the run to be sure")
    return GateResult(rule, Outcome.FAIL, percent, words)


def _is_doubtful(rule: GateRule, found: Change) -> bool:
    """Whether chance may have carried a change beyond its limit. Without any interval there is no doubt to have.

    Repeats show the noise between runs: a difference that they confirm counts as large as it was measured. Single runs
    do not, so that their whole interval has to lie beyond the limit.
    """
    if found.method is Method.REPEATS:
        return found.verdict is Verdict.SAME
    return any(rule.allows(end * 100) for end in (found.low, found.high) if end is not None)


def _interval(found: Change) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" (95% interval {found.low * 100:+.1f}% to {found.high * 100:+.1f}% from {found.method})"


def _why_none(rule: GateRule) -> str:
    """Tails are not given for few samples, which would puzzle whoever asks for one."""
    statistic = figures.figure(rule.metric).statistic
    if not statistic.startswith("p"):
        return ""
    return f": ten samples must lie beyond it, so it needs {round(10 / (1 - float(statistic[1:]) / 100)):,}"
