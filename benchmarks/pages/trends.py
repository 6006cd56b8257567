"""A figure of one scenario over time, with its gates."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from benchmarks import charts
from benchmarks.charts import Mark, Series, table
from benchmarks.loadgen import figures
from benchmarks.models import Baseline, Run, Scenario
from benchmarks.pages.words import link_to, load_of, number
from benchmarks.summaries import title

MOST_RUNS = 200
DEFAULT_METRIC = "ttft.median"
METRICS = (*figures.USUAL, "ttft.p95", "tpot.p95", "e2el.p95", "decode_tps_user.median", "peak_output_throughput")


def context(query: Mapping[str, str]) -> dict[str, Any]:
    """`query` has `scenario` (a primary key) and `metric`. For templates/admin/benchmarks/run/trends.html."""
    scenarios = list(Scenario.objects.all())
    chosen = next((one for one in scenarios if str(one.pk) == query.get("scenario")), next(iter(scenarios), None))
    metric = query.get("metric") if query.get("metric") in METRICS else DEFAULT_METRIC
    shown = {"scenarios": scenarios, "chosen": chosen, "metric": metric}
    shown["metrics"] = [(name, title(name)) for name in METRICS]
    if chosen is None:
        return shown
    newest = chosen.runs.measured().select_related("scenario").order_by("-pk")[:MOST_RUNS]
    runs = [(run, value) for run in reversed(newest) if (value := figures.value(run.summary, metric)) is not None]
    return {
        **shown,
        "chart": _chart(runs, _marks(chosen, metric), metric) if runs else "",
        "runs": {
            "headers": ["Run", "Started", "Load", title(metric), "Revision", ""],
            "rows": [_row(run, value, runs[0][0]) for run, value in reversed(runs)],
        },
        "changelist": f"{reverse('admin:benchmarks_run_changelist')}?scenario__id__exact={chosen.pk}",
    }


def _chart(runs: Sequence[tuple[Run, float]], marks: list[Mark], metric: str) -> SafeString:
    """The x axis counts runs: equal steps show every change, however far apart they were. A line for each load."""
    lines: dict[str, list[tuple[float, float | None]]] = {}
    for place, (run, value) in enumerate(runs, start=1):
        lines.setdefault(load_of(run), []).append((place, value))
    series = [Series(name, points) for name, points in lines.items()]
    name, words = title(metric), "run, the oldest first"
    drawn = charts.line(series, title=name, x_label=words, y_label=name, marks=marks)
    twin = table.line(series, title=name, x_label="run")
    return mark_safe(table.figure(drawn, twin, label=name, summary=f"{name}: data"))  # noqa: S308  (charts escape)


def _marks(scenario: Scenario, metric: str) -> list[Mark]:
    """The gates of this figure: limits as they are, and changes from the pinned run's value."""
    pinned = Baseline.objects.filter(scenario=scenario).select_related("run").first()
    reference = figures.value(pinned.run.summary, metric) if pinned else None
    marks = [] if reference is None else [Mark(reference, "baseline")]
    for rule in scenario.gates.filter(metric=metric, enabled=True):
        bound = f"gate: {rule.get_comparison_display()} {rule.limit_words}"
        if not rule.relative:
            marks.append(Mark(rule.limit, bound))
        elif reference is not None:
            marks.append(Mark(reference * (1 + rule.limit / 100), bound))
    return marks


def _row(run: Run, value: float, first: Run) -> list[Any]:
    started = f"{run.started:%Y-%m-%d %H:%M}" if run.started else ""
    query = f"?run={first.pk}&run={run.pk}"
    url = reverse("admin:benchmarks_run_compare") + query
    compare = mark_safe(f'<a href="{url}">compare with the first</a>') if run.pk != first.pk else ""  # noqa: S308
    return [link_to(run), started, load_of(run), number(value, 2), run.environment.get("revision", ""), compare]
