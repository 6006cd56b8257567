"""The runs of one sweep: throughput against latency, with the knee, and the largest load that keeps the SLOs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from benchmarks import charts
from benchmarks.charts import Curve, CurvePoint, Mark, table
from benchmarks.loadgen import figures, sweep
from benchmarks.models import Run
from benchmarks.pages.words import link_to, number, share
from benchmarks.storage import load_result
from benchmarks.summaries import title

CURVES = ("ttft.median", "tpot.median", "e2el.median")
THROUGHPUT = "output_throughput"
GOOD_SHARE = 0.99  # of requests must keep the SLOs, as in `bench sweep`


@dataclass(frozen=True)
class Point:
    """One load, over its repeats."""

    value: float
    runs: Sequence[Run]

    def figures(self, name: str) -> list[float]:
        found = (figures.value(run.summary, name) for run in self.runs)
        return [value for value in found if value is not None]

    def mean(self, name: str) -> float | None:
        found = self.figures(name)
        return fmean(found) if found else None


def context(runs: Sequence[Run]) -> dict[str, Any]:
    """`runs` are all runs of the sweep. For templates/admin/benchmarks/run/sweep.html."""
    measured = [run for run in runs if run.summary and run.sweep_value is not None]
    points = [Point(value, list(group)) for value, group in groupby(sorted(measured, key=_value), key=_value)]
    of_terminal = [sweep.point(_value(run), load_result(run.pk, every=0)) for run in measured]
    knee, best = sweep.knee(of_terminal), sweep.highest_good(of_terminal, GOOD_SHARE)
    option = runs[0].configuration.get("sweep_option", "load")
    slos = runs[0].configuration.get("slos") or {}
    bend = next((point for point in points if knee and point.value == knee.value), None)
    return {
        "scenario": runs[0].scenario,
        "option": option,
        "knee": bend,
        "best": best and best.value,
        "slos": slos,
        "good_share": f"{GOOD_SHARE:.0%}",
        "charts": [chart for name in CURVES if (chart := _chart(points, name, option, slos, bend))],
        "loads": _loads(points, option, bend),
        "open": sum(run.is_open for run in runs),
        "unmeasured": [(link_to(run), run) for run in runs if not run.summary and not run.is_open],
    }


def _value(run: Run) -> float:
    return run.sweep_value or 0.0


def _chart(
    points: Sequence[Point], name: str, option: str, slos: dict[str, float], knee: Point | None
) -> SafeString | None:
    known = [point for point in points if point.mean(name) is not None]
    if not known:
        return None
    drawn = [_curve_point(point, name, option) for point in known]
    one = Curve(option, drawn, known.index(knee) if knee in known else None)
    metric = figures.figure(name).metric
    marks = [Mark(slos[metric], f"SLO {slos[metric]:g} ms")] if metric in slos else []
    axes = {"title": title(name), "x_label": title(THROUGHPUT), "y_label": title(name)}
    svg = charts.curve([one], marks=marks, **axes)
    return mark_safe(table.figure(svg, table.curve([one], **axes), label=title(name)))  # noqa: S308


def _curve_point(point: Point, name: str, option: str) -> CurvePoint:
    """Error bars are the lowest and the highest of the repeats."""
    ys = point.figures(name)
    spread = (min(ys), max(ys)) if len(ys) > 1 else (None, None)
    url = reverse("admin:benchmarks_run_change", args=[point.runs[0].pk])
    label = f"{point.value:g}"
    return CurvePoint(point.mean(THROUGHPUT) or 0.0, fmean(ys), label, spread[0], spread[1], url)


def _loads(points: Sequence[Point], option: str, knee: Point | None) -> dict[str, list[Any]]:
    headers = [option, "Requests/s", "Output tokens/s", "TTFT median, ms", "TPOT median, ms", "E2EL median, ms"]
    rows = []
    for point in points:
        names = ("request_throughput", THROUGHPUT, *CURVES)
        links = mark_safe(", ".join(f"{link_to(run)} ({run.status})" for run in point.runs))  # noqa: S308
        value = f"{point.value:g} (knee)" if point is knee else f"{point.value:g}"
        rows.append([value, *(number(point.mean(name), 2) for name in names), share(point.mean("goodput")), links])
    return {"headers": [*headers, "Goodput", "Runs"], "rows": rows}
