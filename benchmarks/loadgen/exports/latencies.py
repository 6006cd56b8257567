"""Latencies as vLLM and api_bench_tools define them, which is not how `metrics` does: for their formats alone.

Over all successful requests but the warm-up, in ms:
  ttft  first chunk - send
  tpot  (last chunk - first chunk) / (output tokens - 1), for more than one token
  itl   gaps between chunks, however many tokens they hold, pooled
  e2el  last chunk - send
Where one answer carries several streams, gaps are those within a stream, and TPOT is over all of them together.
Standard deviations are those of the population. A result that has no records, as from an imported summary, gives what
its summary says.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev

from benchmarks.loadgen.distribution import percentile
from benchmarks.loadgen.records import Phase, RequestRecord, RunResult
from benchmarks.loadgen.request_metrics import TIMES, chunk_gaps, e2el, ttft

METRICS = ("ttft", "tpot", "itl", "e2el")


def counted(result: RunResult) -> list[RequestRecord]:
    """The requests that these formats know: all but the warm-up, in the order of their index."""
    return sorted((one for one in result.records if one.phase is not Phase.WARMUP), key=lambda one: one.index)


def pooled(result: RunResult) -> dict[str, list[float]]:
    """Every value of each metric, in ms."""
    values: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for record in counted(result):
        if record.succeeded:
            values["ttft"] += _milliseconds(ttft(record))
            values["tpot"] += _milliseconds(_tpot(record))
            values["itl"] += [gap * 1000 for gap in chunk_gaps(record)]
            values["e2el"] += _milliseconds(e2el(record))
    return values


def statistics(result: RunResult, percentiles: Sequence[float]) -> dict[str, dict[str, float | None]]:
    """{metric: {mean, median, std, min, max, pXX}} in ms, None where there is no value."""
    if result.records:
        return {metric: _describe(values, percentiles) for metric, values in pooled(result).items()}
    known = result.summary.get("latency_ms") or {}
    known = {**known, "itl": known.get("icl") or known.get("itl")}  # their ITL is the gap between chunks
    names = _names(percentiles)
    return {metric: {name: (known.get(metric) or {}).get(name) for name in names} for metric in METRICS}


def good_requests(result: RunResult, slos: Mapping[str, float]) -> int:
    """How many succeeded and keep every limit, in ms. An answer without a second token keeps any limit of its TPOT."""
    ended_well = (record for record in counted(result) if record.succeeded)
    return sum(all(_keeps(record, name, limit) for name, limit in slos.items()) for record in ended_well)


def _keeps(record: RequestRecord, name: str, limit: float) -> bool:
    value = _tpot(record) if name == "tpot" else TIMES[name](record)
    return name == "tpot" if value is None else value * 1000 <= limit


def _tpot(record: RequestRecord) -> float | None:
    """Tokens behind the first of each stream, whatever the first chunk held."""
    streams = len({chunk.choice for chunk in record.chunks})
    if not streams or not record.output_tokens or record.output_tokens <= streams:
        return None
    return sum(chunk_gaps(record)) / (record.output_tokens - streams)


def _describe(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(_names(percentiles))
    ordered = sorted(values)
    plain = (fmean(ordered), median(ordered), pstdev(ordered), ordered[0], ordered[-1])
    tails = (percentile(ordered, share * 10) for share in percentiles)
    return dict(zip(_names(percentiles), (*plain, *tails), strict=True))


def _names(percentiles: Sequence[float]) -> tuple[str, ...]:
    return ("mean", "median", "std", "min", "max", *(f"p{share:g}" for share in percentiles))


def _milliseconds(seconds: float | None) -> list[float]:
    return [] if seconds is None else [seconds * 1000]
