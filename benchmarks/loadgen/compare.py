"""Runs against a baseline: by how much each figure changed, and whether that is more than chance.

Runs of one label are repeats of one measurement. Where either side has repeats, the interval of a change comes from
their scatter (Student's t, pooled variance), which is the noise between runs. Single runs only show the noise within a
run: there it comes from a bootstrap over blocks of neighbouring requests, and of seconds for throughputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from benchmarks.loadgen import chance, figures
from benchmarks.loadgen.records import RunResult
from benchmarks.loadgen.samples import samples


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference seen"
    UNKNOWN = "cannot tell"


class Method(StrEnum):
    """Where the interval of a change comes from."""

    REPEATS = "repeats"
    REQUESTS = "requests"
    NONE = ""


@dataclass(frozen=True)
class Group:
    """Repeats of one measurement."""

    label: str
    results: Sequence[RunResult]


@dataclass(frozen=True)
class Change:
    """One figure against the baseline. `change`, `low` and `high` are relative: 0.2 is 20% more; 95% interval.

    `baseline` and `value` are means over repeats.
    """

    figure: figures.Figure
    baseline: float | None
    value: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    method: Method


@dataclass(frozen=True)
class Comparison:
    """`configuration` has what differs, as {option: (baseline, candidate)}; `warnings` say why to be careful."""

    label: str
    changes: Sequence[Change]
    configuration: Mapping[str, tuple[Any, Any]]
    warnings: Sequence[str]


def group(results: Sequence[RunResult]) -> list[Group]:
    """By label, in order of appearance. A run without a label is a group of its own."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.profile.get("label") or result.run_id, []).append(result)
    return [Group(label, members) for label, members in groups.items()]


def compare(baseline: Group, candidates: Sequence[Group], metrics: Sequence[str] = figures.USUAL) -> list[Comparison]:
    """Every candidate against the baseline. Raises ValueError for a metric that is not known."""
    return [
        Comparison(
            label=one.label,
            changes=[change(baseline, one, name) for name in metrics],
            configuration=_differences(baseline.results[0].profile, one.results[0].profile),
            warnings=_warnings(baseline, one),
        )
        for one in candidates
    ]


def change(baseline: Group, candidate: Group, metric: str) -> Change:
    """One figure of a candidate against the baseline. Raises ValueError for a metric that is not known."""
    figure = figures.figure(metric)
    before, after = _values(baseline, metric), _values(candidate, metric)
    if not before or not after:
        return Change(figure, _mean(before), _mean(after), None, None, None, Verdict.UNKNOWN, Method.NONE)
    old, new = sum(before) / len(before), sum(after) / len(after)
    if old == 0:
        verdict = Verdict.SAME if new == 0 else Verdict.UNKNOWN
        return Change(figure, old, new, 0.0 if new == 0 else None, None, None, verdict, Method.NONE)
    interval, method = _interval(baseline, candidate, figure, before, after)
    low, high = (interval[0] / abs(old), interval[1] / abs(old)) if interval else (None, None)
    return Change(figure, old, new, (new - old) / abs(old), low, high, _verdict(figure, low, high), method)


def _interval(
    baseline: Group, candidate: Group, figure: figures.Figure, before: Sequence[float], after: Sequence[float]
) -> tuple[tuple[float, float] | None, Method]:
    """For the difference of the means of `before` and `after`, which are the figure's values; None where there is no
    way to tell.
    """
    if len(before) + len(after) > 2:
        return chance.interval_of_repeats(before, after), Method.REPEATS
    old, new = samples(baseline.results[0], figure), samples(candidate.results[0], figure)
    if not old or not new:
        return None, Method.NONE
    below, above = chance.spread_of_samples(old, new, figure.statistic or "mean")
    difference = after[0] - before[0]
    return (difference + below, difference + above), Method.REQUESTS


def _verdict(figure: figures.Figure, low: float | None, high: float | None) -> Verdict:
    if low is None or high is None:
        return Verdict.UNKNOWN
    if low <= 0 <= high:
        return Verdict.SAME
    return Verdict.BETTER if (low > 0) == figure.more_is_better else Verdict.WORSE


def _values(group: Group, metric: str) -> list[float]:
    found = (figures.value(result.summary, metric) for result in group.results)
    return [one for one in found if one is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# Options that may differ without making two runs two measurements.
_INCIDENTAL = frozenset(
    {"label", "metadata", "result_dir", "result_filename", "save_result", "save_detailed", "source"}
)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = sorted((old.keys() | new.keys()) - _INCIDENTAL)
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _warnings(baseline: Group, candidate: Group) -> list[str]:
    warnings = []
    first, second = baseline.results[0], candidate.results[0]
    for key, words in _MUST_AGREE.items():
        if first.profile.get(key) != second.profile.get(key):
            warnings.append(f"{words} differs: {first.profile.get(key)} and {second.profile.get(key)}")
    digests = {(one.environment.get("dataset") or {}).get("sha256") for one in (first, second)} - {None}
    meant = first.profile.get("prompt_seed") != second.profile.get("prompt_seed")  # as between the loads of a sweep
    if len(digests) > 1 and not warnings and not meant:
        warnings.append("the prompts differ, though they come from the same data set and seed")
    old, new = (set(one.summary.get("output_token_sources") or {}) for one in (first, second))
    if old and new and old != new:
        warnings.append(
            f"output tokens were counted in different ways: {', '.join(sorted(old))} and {', '.join(sorted(new))}"
        )
    for result in (*baseline.results, *candidate.results):
        if result.health.verdict == "client-limited":
            warnings.append(f"{result.run_id}: the client limited the load: {'; '.join(result.health.reasons)}")
        if result.cancelled:
            warnings.append(f"{result.run_id}: was cancelled, and is only a part of a run")
    return warnings


_MUST_AGREE = {"dataset_name": "the data set", "dataset_path": "the data set's file", "seed": "the seed"}
