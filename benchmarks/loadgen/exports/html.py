"""A report in one file: no script, nothing loaded from anywhere, every chart with its table, light and dark."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks import charts
from benchmarks.charts import table
from benchmarks.loadgen import by_window, figures, metrics, samples, server_chart, timeline, token_charts
from benchmarks.loadgen.exports.flat import flatten
from benchmarks.loadgen.exports.vllm_json import model_id
from benchmarks.loadgen.records import Phase, RunResult

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem;
  background: light-dark(#ffffff, #14181f); color: light-dark(#1c2430, #e6e9ee); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
.facts, .cards { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; margin: 0.5rem 0; padding: 0; }
.card { border: 1px solid light-dark(#d9dde3, #3a424f); border-radius: 8px; min-width: 8rem; padding: 0.5rem 0.75rem; }
.card dt { font-size: 0.85rem; } .card dd { font-size: 1.25rem; font-weight: 600; margin: 0; }
.notice { border-inline-start: 4px solid light-dark(#b42318, #ff8a80); padding: 0.25rem 0.75rem; }
.chart-table td { overflow-wrap: anywhere; }
.wide td { white-space: normal; text-align: start; }
@media print { details.chart-data { display: none; } }
"""
# Throughputs have the window that they are of behind their name.
CARDS = (
    ("request_throughput", "Requests/s"),
    ("output_throughput", "Output tokens/s"),
    ("peak_output_throughput", "Peak output tokens/s"),
    ("success_rate", "Success rate"),
    ("goodput", "Goodput"),
    ("ttft.median", "TTFT median"),
    ("ttft.p99", "TTFT p99"),
    ("tpot.median", "TPOT median"),
    ("e2el.median", "E2EL median"),
)
SHOWN = (("ttft", "Time to first token"), ("tpot", "Time per output token"), ("e2el", "End-to-end latency"))


def write(result: RunResult) -> bytes:
    title = f"{result.kind}: {model_id(result) or 'unknown model'}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _facts(result),
        *_notices(result),
        _section("Summary", _cards(result.summary), *_summary_tables(result.summary)),
        _section("Over time", *_over_time(result)),
        _section("Distributions", *_distributions(result)),
        _section("Errors", _errors(result.summary)),
        _section("Client health", _client_health(result)),
        _section("Configuration", *_configuration(result)),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{charts.stylesheet()}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    ).encode()


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>" if any(parts) else ""


def _facts(result: RunResult) -> str:
    facts = (f"run {result.run_id}", f"started {result.started_at}", f"{result.duration:.1f} s")
    return f'<p class="facts">{"".join(f"<span>{escape(fact)}</span>" for fact in facts)}</p>'


def _notices(result: RunResult) -> Iterator[str]:
    if result.cancelled:
        yield '<p class="notice">This run was cancelled: the figures are of the part that ran.</p>'
    if result.health.verdict == "client-limited":
        yield '<p class="notice">The client limited the load: these figures are not the server\'s.</p>'
    if result.summary.get("chunk_estimated"):
        yield '<p class="notice">The server did not tell the tokens of each chunk: ITL is an estimate.</p>'


def _cards(summary: Mapping[str, Any]) -> str:
    cards = []
    for name, label in CARDS:
        value = figures.value(summary, name)
        if value is not None:
            label += f", {by_window.window_of(summary, name)}" if name in by_window.THROUGHPUTS else ""
            cards.append(f'<div class="card"><dt>{label}</dt><dd>{_shown(value, figures.figure(name).unit)}</dd></div>')
    return f'<dl class="cards">{"".join(cards)}</dl>' if cards else ""


def _shown(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value * 100:.4g} %"
    return f"{value:,.4g} ms" if unit == "ms" else f"{value:,.4g}"


def _summary_tables(summary: Mapping[str, Any]) -> Iterator[str]:
    windows = [[name, measured, whole] for name, measured, whole in by_window.rows(summary)]
    columns = ("figure", by_window.MEASURED, by_window.WHOLE)
    yield _scrolling(table.table(columns, windows, title="Throughput"), "Throughput")
    plain = {key: value for key, value in summary.items() if key not in ("latency_ms", "speed", "errors")}
    for key, title in (("latency_ms", "Latencies, ms"), ("speed", "Speed, tokens/s")):
        rows = [
            [metric, *((statistics or {}).get(name) for name in ("count", *figures.STATISTICS))]
            for metric, statistics in (summary.get(key) or {}).items()
        ]
        if rows:
            yield _scrolling(table.table(("metric", "count", *figures.STATISTICS), rows, title=title), title)
    yield _folded("All counts and rates", table.table(("figure", "value"), list(flatten(plain)), title="Summary"))


def _over_time(result: RunResult) -> Iterator[str]:
    buckets = metrics.time_buckets(result.records)
    if not buckets:
        return

    def series(name: str, key: str, second_axis: bool = False) -> charts.Series:
        return charts.Series(name, [(one["second"], one[key]) for one in buckets], second_axis=second_axis)

    bands = _phases(result)
    requests = [series("sent", "sent"), series("done", "done"), series("in flight", "in_flight", second_axis=True)]
    yield _line(requests, "Requests in each second", "requests", bands, y2_label="in flight")
    yield token_charts.over_time(buckets, bands)
    latency = [series("p50", "ttft_p50_ms"), series("p99", "ttft_p99_ms")]
    yield _line(latency, "Time to first token, by the second it came", "ms", bands)
    yield from server_chart.figures(result.server_samples, bands)
    failed = [one["failed"] for one in buckets]
    if any(failed):
        names = [str(one["second"]) for one in buckets]
        strip = charts.heat_strip(failed, title="Failed requests", x_label="s", unit="requests", labels=names)
        twin = table.heat_strip(failed, title="Failed requests", x_label="s", labels=names)
        yield table.figure(strip, twin, label="Failed requests")
    yield from timeline.figures(result.records, result.summary)


def _line(
    series: Sequence[charts.Series], title: str, y_label: str, bands: Sequence[charts.Band], y2_label: str = ""
) -> str:
    x_label = "seconds since the run's start"
    chart = charts.line(series, title=title, x_label=x_label, y_label=y_label, y2_label=y2_label, bands=bands)
    return table.figure(chart, table.line(series, title=title, x_label=x_label), label=title)


def _phases(result: RunResult) -> list[charts.Band]:
    """From the first send of a phase to that of the next; the last one goes on to the end."""
    starts = {
        phase: min((one.sent for one in result.records if one.phase is phase and one.sent is not None), default=None)
        for phase in Phase
    }
    known = sorted((start, phase.value) for phase, start in starts.items() if start is not None)
    if len(known) < 2:
        return []
    end = max((one.done for one in result.records if one.done is not None), default=known[-1][0])
    ends = [*(start for start, _ in known[1:]), end]
    return [charts.Band(start, end, name) for (start, name), end in zip(known, ends, strict=True)]


def _distributions(result: RunResult) -> Iterator[str]:
    slos = (result.summary.get("goodput") or {}).get("slos") or {}
    for metric, title in SHOWN:
        values = samples.values(result, metric)
        if not values:
            continue
        marks = [
            charts.Mark(value, f"{name} {value:.4g}")
            for name in ("p50", "p90", "p99")
            if (value := figures.value(result.summary, f"{metric}.{name}")) is not None
        ]
        bars = charts.histogram(values, title=title, x_label="ms", y_label="requests", marks=marks)
        twin = table.histogram(values, title=title, x_label="ms", y_label="requests")
        yield table.figure(bars, twin, label=title)
        limits = [charts.Mark(slos[metric], f"limit {slos[metric]:g} ms")] if metric in slos else []
        shares = f"{title}, cumulative"
        curve = charts.cdf({metric: values}, title=shares, x_label="ms", marks=limits)
        yield table.figure(curve, table.cdf({metric: values}, title=shares), label=shares)
    yield from token_charts.lengths(result.records)


def _errors(summary: Mapping[str, Any]) -> str:
    errors: Mapping[str, int] = summary.get("errors") or {}
    if not errors:
        return "<p>None.</p>"
    title, counts = "Failed requests by reason", {"requests": list(errors.values())}
    chart = charts.bars(list(errors), counts, title=title, x_label="reason", y_label="requests")
    return table.figure(chart, table.bars(list(errors), counts, title=title, x_label="reason"), label=title)


def _client_health(result: RunResult) -> str:
    health = result.health
    rows: list[list[table.Cell]] = [
        ["verdict", health.verdict],
        ["send lag p99, ms", health.send_lag_p99_ms],
        ["event loop lag p99, ms", health.loop_lag_p99_ms],
        ["achieved / planned sends", health.achieved_send_ratio],
        ["busiest process, % of a core", health.cpu_percent_max],
    ]
    reasons = "".join(f"<p>{escape(reason)}</p>" for reason in health.reasons)
    return reasons + _scrolling(
        table.table(("what", "value"), rows, title="Did the generator keep up?"), "Client health"
    )


def _configuration(result: RunResult) -> Iterator[str]:
    for title, values in (("Options", result.profile), ("Environment", result.environment), ("Server", result.server)):
        if values:
            shown = table.table(("setting", "value"), list(flatten(values)), title=title)
            yield _folded(title, f'<div class="wide">{shown}</div>')


def _scrolling(content: str, label: str) -> str:
    return f'<div class="chart-scroll" tabindex="0" role="group" aria-label="{escape(label)}">{content}</div>'


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{_scrolling(content, title)}</details>"
