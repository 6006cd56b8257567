"""The runs of one sweep: throughput against latency with its knee, and the largest load that keeps the SLOs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from benchmarks import charts
from benchmarks.charts import Curve, CurvePoint, Mark, table
from benchmarks.loadgen import chance, figures, sweep
from benchmarks.models import Run, Status
from benchmarks.pages.words import link_to, number, share
from benchmarks.summaries import title

# The knee is that of the last one, and is marked at the same load in all.
CURVES = ("ttft.median", "tpot.median", "e2el.mean")
THROUGHPUT = "output_throughput"
SPEED = "decode_tps_user.median"
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
    loads = [_load(point) for point in points]
    knee, best = sweep.knee(loads), sweep.highest_good(loads, GOOD_SHARE)
    option = runs[0].configuration.get("sweep_option", "load")
    slos = runs[0].configuration.get("slos") or {}
    bend = next((point for point in points if knee and point.value == knee.value), None)
    drawn = [_chart(points, name, option, slos, bend) for name in CURVES]
    return {
        "scenario": runs[0].scenario,
        "option": option,
        "knee": bend,
        "best": best and best.value,
        "slos": slos,
        "good_share": f"{GOOD_SHARE:.0%}",
        "charts": [chart for chart in (*drawn, _pareto(points, option)) if chart],
        "loads": _loads(points, option, bend),
        "repeated": any(len(point.runs) > 1 for point in points),
        "open": sum(run.is_open for run in runs),
        "unmeasured": [(link_to(run), run) for run in runs if not run.summary and not run.is_open],
    }


def _value(run: Run) -> float:
    return run.sweep_value or 0.0


def _load(point: Point) -> sweep.Point:
    """Means over its repeats, which are what the curves show; but of goodput the worst repeat."""
    return sweep.Point(
        value=point.value,
        run_id=point.runs[0].key,
        request_throughput=point.mean("request_throughput") or 0.0,
        output_throughput=point.mean(THROUGHPUT) or 0.0,
        success_rate=point.mean("success_rate") or 0.0,
        ttft_p50=point.mean("ttft.median"),
        ttft_p99=point.mean("ttft.p99"),
        tpot_p50=point.mean("tpot.median"),
        e2el_mean=point.mean("e2el.mean"),
        goodput=min(point.figures("goodput"), default=None),
        client=point.runs[0].client_verdict,
    )


def _chart(
    points: Sequence[Point], name: str, option: str, slos: dict[str, float], knee: Point | None
) -> SafeString | None:
    known = [point for point in points if point.figures(name)]
    if not known:
        return None
    drawn = [_curve_point(point, THROUGHPUT, name) for point in known]
    one = Curve(option, drawn, known.index(knee) if knee in known else None)
    metric = figures.figure(name).metric
    marks = [Mark(slos[metric], f"SLO {slos[metric]:g} ms")] if metric in slos else []
    axes = {"title": f"{title(name)} against throughput", "x_label": title(THROUGHPUT), "y_label": title(name)}
    svg = charts.curve([one], marks=marks, **axes)
    return _figure(svg, table.curve([one], **axes), axes["title"])


def _pareto(points: Sequence[Point], option: str) -> SafeString | None:
    """What the server gives to all together against what one user has of it: more is better on both axes."""
    drawn = [_curve_point(point, SPEED, THROUGHPUT) for point in points if point.figures(SPEED)]
    if not drawn:
        return None
    names = {"title": "Throughput against the speed of one user", "x_label": title(SPEED), "name": option}
    svg = charts.pareto(drawn, y_label=title(THROUGHPUT), **names)
    return _figure(svg, table.pareto(drawn, y_label=title(THROUGHPUT), **names), names["title"])


def _curve_point(point: Point, x: str, y: str) -> CurvePoint:
    """Means of the repeats with their 95% intervals."""
    url = reverse("admin:benchmarks_run_change", args=[point.runs[0].pk])
    intervals = [chance.interval_of_mean(point.figures(name)) for name in (x, y)]
    return CurvePoint(point.mean(x) or 0.0, point.mean(y) or 0.0, f"{point.value:g}", *intervals, url=url)


def _figure(drawn: str, twin: str, name: str) -> SafeString:
    return mark_safe(table.figure(drawn, twin, label=name, summary=f"{name}: data"))  # noqa: S308  (charts escape)


def _loads(points: Sequence[Point], option: str, knee: Point | None) -> dict[str, list[Any]]:
    headers = [option, "Requests/s", "Output tokens/s", "TTFT median, ms", "TPOT median, ms", "E2EL mean, ms"]
    rows = []
    for point in points:
        names = ("request_throughput", THROUGHPUT, *CURVES)
        links = mark_safe(", ".join(map(_link, point.runs)))  # noqa: S308  (links escape)
        value = f"{point.value:g} (knee)" if point is knee else f"{point.value:g}"
        cells = [_with_interval(point, name) for name in names]
        rows.append([value, *cells, share(point.mean("goodput")), links])
    return {"headers": [*headers, "Goodput", "Runs"], "rows": rows}


def _link(run: Run) -> str:
    return link_to(run) if run.status == Status.DONE else f"{link_to(run)} ({run.status})"


def _with_interval(point: Point, name: str) -> str:
    """The mean of the repeats, with half the width of its 95% interval."""
    mean, interval = point.mean(name), chance.interval_of_mean(point.figures(name))
    return number(mean, 2) + (
        f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{number((interval[1] - interval[0]) / 2, 2)}" if interval else ""
    )
