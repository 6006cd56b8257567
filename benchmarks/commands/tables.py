"""A result as text for the terminal. The figures are those of its summary; see `metrics` for their definitions."""

from collections.abc import Iterable
from typing import Any

from benchmarks.loadgen import metrics, verdict
from benchmarks.loadgen.distribution import percentile, supports
from benchmarks.loadgen.options import parse_percentiles
from benchmarks.loadgen.records import Phase, RunResult

SHOWN_CHARACTERS = 200  # of an error


def summary(result: RunResult) -> str:
    """Several lines: counts, throughput, latencies, what is wrong, and whether the client kept up."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: RunResult) -> Iterable[str]:
    figures = result.summary
    counts, tokens = figures["requests"], figures["tokens"]
    ended = "" if result.environment["ended_by"] == "schedule" else f", ended by {result.environment['ended_by']}"
    yield f"{result.kind}: {result.server['model'] or 'a model without a name'}{ended}"
    succeeded = figures["success_rate"]
    yield (
        f"requests     {counts['completed']} completed, {counts['failed']} failed"
        + ("" if succeeded is None else f" ({succeeded:.1%} succeeded)")
        + (f", {counts['warmup']} of the warm-up beside" if counts["warmup"] else "")
    )
    for error, count in figures["errors"].items():
        text = next((record.error_text for record in result.records if record.error == error), "")
        yield f"  {error:<18} {count}, such as: {text[:SHOWN_CHARACTERS]}"
    yield f"tokens       {tokens['input']} in, {tokens['output']} out"
    if rtfx := figures.get("rtfx"):
        yield f"audio        {number(rtfx)} times as fast as it lasts (RTFx)"
    yield f"duration     {number(figures['duration_s'])} s, measured {number(figures['window_s'])} s"
    yield f"{'per second':<24}{'whole run':>12}{'measured':>12}"
    for name, title in (
        ("request_throughput", "requests"),
        ("output_throughput", "output tokens"),
        ("total_token_throughput", "all tokens"),
    ):
        both = figures[name]
        yield f"  {title:<22}{number(both['full']):>12}{number(both['measured']):>12}"
    yield f"  {'peak output tokens':<22}{number(figures['peak_output_throughput']):>12}"
    rate = figures["send_rate"]
    if rate["offered"] is not None:
        yield f"sent         {number(rate['achieved'])} requests/s of {number(rate['offered'])} offered"
    flight = figures["concurrency"]
    yield f"in flight    {number(flight['mean'])} on average, {number(flight['max'])} at most"
    if goodput := figures["goodput"]:
        share = goodput["fraction"]
        yield f"goodput      {number(goodput['per_second'])} requests/s" + ("" if share is None else f", {share:.1%}")
    yield from _latencies(result)
    yield f"client       {result.health.verdict}"
    for reason in result.health.reasons:
        yield f"  {reason}"
    if since := result.environment["over_saturated_since"]:
        yield f"the server was offered more than it could take from {since:.0f} s on"
    if not result.cancelled and (words := verdict.failure(result)):
        yield f"the run failed: {words[:SHOWN_CHARACTERS]}"


def _latencies(result: RunResult) -> Iterable[str]:
    """A row for each metric that was asked for and exists."""
    shares = parse_percentiles(result.profile["metric_percentiles"])
    titles = ["mean", "median", "std", *(f"p{share:g}" for share in shares)]
    if not result.summary["latency_ms"]["e2el"]["count"]:
        return
    yield f"{'ms (measured requests)':<24}" + "".join(f"{title:>12}" for title in titles)
    doubtful = False
    for name in result.profile["percentile_metrics"].split(","):
        known = result.summary["latency_ms"].get(name.strip())
        if not known or not known["count"]:
            continue
        sample = sorted(values(result, name.strip()))
        cells = [number(known["mean"]), number(known["median"]), number(known["std"])]
        for share in shares:
            told = supports(len(sample), round(share * 10))
            doubtful = doubtful or not told
            cell = number(percentile(sample, share * 10))
            cells.append(cell if told else f"({cell})")
        yield f"  {name.strip():<22}" + "".join(f"{cell:>12}" for cell in cells)
    if doubtful:
        yield "  (in brackets: fewer than ten samples lie beyond it)"


def values(result: RunResult, metric: str) -> list[float]:
    """All values of one latency, in ms, as the summary counts them."""
    return [
        value
        for record in result.records
        if record.phase is Phase.MEASURE and record.succeeded
        for value in metrics.values_of(record)["latency_ms"].get(metric, ())
    ]


def number(value: Any) -> str:
    """Two digits behind the point, fewer for large numbers, - for none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.2f}"
