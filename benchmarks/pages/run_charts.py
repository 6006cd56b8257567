"""The charts of one run, each with its table twin."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.safestring import SafeString, mark_safe

from benchmarks import charts
from benchmarks.charts import Band, Mark, Series, table
from benchmarks.loadgen import samples, server_chart, token_charts
from benchmarks.loadgen import timeline as lanes
from benchmarks.loadgen.records import RunResult, ServerSample
from benchmarks.summaries import TITLES

DISTRIBUTIONS = ("ttft", "tpot", "itl", "e2el")
SPREAD = 20.0  # a tail this many times longer than the median is drawn on a logarithmic axis


def distributions(result: RunResult, slos: dict[str, float]) -> list[SafeString]:
    """Histogram of every latency that the run has, with its SLO, and one CDF of those of whole requests."""
    found = {metric: samples.values(result, metric) for metric in DISTRIBUTIONS}
    drawn = [_histogram(metric, values, slos.get(metric)) for metric, values in found.items() if values]
    whole = {TITLES[metric]: found[metric] for metric in ("ttft", "e2el") if found[metric]}
    return [*drawn, _cdf(whole)] if whole else drawn


def tokens(result: RunResult) -> list[SafeString]:
    """How long prompts and answers are."""
    return [mark_safe(one) for one in token_charts.lengths(result.records)]  # noqa: S308  (charts escape)


def timeline(result: RunResult, *, of: int) -> list[SafeString]:
    """A lane for each request. `of` is how many the run has, of which the result may have only some."""
    return [mark_safe(one) for one in lanes.figures(result.records, result.summary, of=of)]  # noqa: S308  (charts escape)


def over_time(buckets: Sequence[Mapping[str, Any]], window: Sequence[float] | None) -> list[SafeString]:
    """Requests, tokens and times to first token by second; the measured window is shaded."""
    if not buckets:
        return []
    bands = _bands(window)

    def points(field: str) -> list[tuple[float, float | None]]:
        return [(bucket["second"], bucket[field]) for bucket in buckets]

    requests = [Series(field, points(field)) for field in ("sent", "done", "failed")]
    first_tokens = [Series("median", points("ttft_p50_ms")), Series("p99", points("ttft_p99_ms"))]
    return [
        _line(requests, bands, title="Requests in each second", y_label="requests"),
        mark_safe(token_charts.over_time(buckets, bands)),  # noqa: S308  (charts escape)
        _line(first_tokens, bands, title="TTFT over time", y_label="ms"),
    ]


def server(samples: Sequence[ServerSample], window: Sequence[float] | None) -> list[SafeString]:
    """What the server said of itself; the measured window is shaded."""
    return [mark_safe(one) for one in server_chart.figures(samples, _bands(window))]  # noqa: S308  (charts escape)


def errors(counts: dict[str, int]) -> SafeString:
    names = list(counts)
    series = {"requests": [counts[name] for name in names]}
    drawn = charts.bars(names, series, title="Failed requests by cause", x_label="cause", y_label="requests")
    return _figure(drawn, table.bars(names, series, title="Failed requests", x_label="cause"), "Failed requests")


def cdf(groups: dict[str, Sequence[float]], title: str) -> SafeString:
    """One curve for each group, over the same axis in ms."""
    scale = "log" if any(_has_long_tail(values) for values in groups.values()) else "linear"
    drawn = charts.cdf(groups, title=title, x_label="ms", x_scale=scale)
    return _figure(drawn, table.cdf(groups, title=title), title)


def _cdf(groups: dict[str, Sequence[float]]) -> SafeString:
    return cdf(groups, "Share of requests at or below a latency")


def _histogram(metric: str, values: Sequence[float], slo: float | None) -> SafeString:
    names = {"title": TITLES[metric], "x_label": "ms", "y_label": "samples" if metric == "itl" else "requests"}
    marks = [Mark(slo, f"SLO {slo:g} ms")] if slo else []
    return _figure(charts.histogram(values, marks=marks, **names), table.histogram(values, **names), names["title"])


def _bands(window: Sequence[float] | None) -> list[Band]:
    return [Band(window[0], window[1], "measured")] if window else []


def _line(series: list[Series], bands: list[Band], *, title: str, y_label: str) -> SafeString:
    drawn = charts.line(series, title=title, x_label="seconds since the run's start", y_label=y_label, bands=bands)
    return _figure(drawn, table.line(series, title=title, x_label="second"), title)


def _figure(drawn: str, twin: str, title: str) -> SafeString:
    return mark_safe(table.figure(drawn, twin, label=title, summary=f"{title}: data"))  # noqa: S308  (charts escape)


def _has_long_tail(values: Sequence[float]) -> bool:
    ordered = sorted(values)
    return bool(ordered) and ordered[0] > 0 and ordered[-1] > SPREAD * ordered[len(ordered) // 2]
