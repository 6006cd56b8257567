"""Chosen runs against one of them."""

import json
from collections.abc import Sequence
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from benchmarks.gating import group_of
from benchmarks.loadgen import compare, samples
from benchmarks.loadgen.compare import Change, Group, Verdict
from benchmarks.models import Run
from benchmarks.pages import run_charts
from benchmarks.pages.words import NOTHING, link_to, load_of, number
from benchmarks.summaries import TITLES, title

MOST_RUNS = 6
DRAWN = ("ttft", "tpot", "e2el")
SIGNS = {Verdict.BETTER: "▲", Verdict.WORSE: "▼", Verdict.SAME: "≈", Verdict.UNKNOWN: ""}


def context(runs: Sequence[Run], baseline: Run) -> dict[str, Any]:
    """`baseline` is one of the runs. For templates/admin/benchmarks/run/compare.html."""
    groups = {run: group_of(run) for run in runs}
    others = [run for run in runs if run != baseline]
    found = compare.compare(groups[baseline], [groups[run] for run in others])
    return {
        "runs": runs,
        "baseline": baseline,
        "chosen": [(run, load_of(run), _permalink(runs, run)) for run in runs],
        "warnings": [
            (run, warning.removeprefix(f"{run.key}: "))
            for run, one in zip(others, found, strict=True)
            for warning in one.warnings
        ],
        "differences": _differences(others, found),
        "changes": _changes(others, [one.changes for one in found]),
        "charts": [chart for metric in DRAWN if (chart := _cdf(groups, metric))],
    }


def _permalink(runs: Sequence[Run], baseline: Run) -> str:
    query = urlencode({"run": [run.pk for run in runs], "baseline": baseline.pk}, doseq=True)
    return f"{reverse('admin:benchmarks_run_compare')}?{query}"


def _differences(runs: Sequence[Run], found: Sequence[compare.Comparison]) -> dict[str, list[Any]]:
    """The options that differ from the baseline's, and in which run."""
    rows = [
        [link_to(run), option, _value(old), _value(new)]
        for run, one in zip(runs, found, strict=True)
        for option, (old, new) in one.configuration.items()
    ]
    return {"headers": ["Run", "Option", "Baseline", "This run"], "rows": rows}


def _changes(runs: Sequence[Run], changes: Sequence[Sequence[Change]]) -> dict[str, list[Any]]:
    """A row for each figure that any of the runs has: the baseline's, and of each run value, change and verdict."""
    rows = []
    for of_runs in zip(*changes, strict=True):
        first = of_runs[0]
        if first.baseline is None and all(change.value is None for change in of_runs):
            continue
        rows.append([title(first.figure.name), number(first.baseline, 2), *map(_change, of_runs)])
    return {"headers": ["Figure", "Baseline", *(f"Run {run.key}" for run in runs)], "rows": rows}


def _change(change: Change) -> Any:
    if change.value is None or change.change is None:
        return number(change.value, 2)
    interval = ""
    if change.low is not None and change.high is not None:
        interval = f"95 %: {change.low:+.1%} to {change.high:+.1%}, from {change.method}"
    return format_html(
        '{} <span class="bench-change" data-verdict="{}" title="{}">{} {}</span>',
        number(change.value, 2),
        change.verdict.value,
        f"{change.verdict}. {interval}".strip(),
        f"{change.change:+.1%}",
        f"{SIGNS[change.verdict]} {change.verdict}",
    )


def _cdf(groups: dict[Run, Group], metric: str) -> Any:
    values = {
        run.key: [value for result in group.results for value in samples.values(result, metric)]
        for run, group in groups.items()
    }
    present = {name: found for name, found in values.items() if found}
    return run_charts.cdf(present, f"{TITLES[metric]}: share of requests at or below") if present else None


def _value(value: Any) -> str:
    return NOTHING if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
