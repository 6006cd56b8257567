"""Every figure of a run, derived in one place from the raw records.

`summarise(records, slos=..., window=...)` gives a dict of JSON values (None where a figure does not exist, never NaN):

duration_s              D_full: first send to the last arrival, over all phases but the warm-up; None without a send
window                  [start, end] of the measured window, in seconds since the run's start, or None. In a closed loop
                        from the first send of the last user to the end of the first one who is through; in an open loop
                        from the end of warm-up and ramp (the first send without them) to the last send of a measured
                        request, so that the drain behind it is left out. A load without such a time, as when all is
                        sent at once, is measured from its first send to its last arrival
window_s                D_meas, its length
requests                {total, completed, failed, cancelled} over all phases but the warm-up (failed includes
                        cancelled), and `warmup` and `measured`: how many requests had these phases
success_rate            completed / total, 0 to 1, over all phases but the warm-up
errors                  {error class: count}, only classes that occurred, all phases but the warm-up
request_throughput      {full, measured}: completed requests per second of D_full; and those that completed in the
                        window per second of D_meas
output_throughput,
input_throughput,
total_token_throughput  {full, measured}: tokens per second. `full` is all tokens of completed requests over D_full.
                        `measured` counts output tokens by the time each arrived in the window, and input tokens by the
                        time of the first token
peak_output_throughput  most output tokens that arrived in one second (seconds counted from the run's start)
concurrency             {mean, max} of requests in flight in the window, exact (sweep line over the intervals)
achieved_send_ratio     length of the schedule / time that sending it took; None in a closed loop
send_rate               {offered, achieved}: requests per second that were due by the schedule, and that were sent:
                        their number but one over that length, and over that time; None as above
goodput                 None without SLOs, else {slos, good, fraction, per_second}: measured requests that meet every
                        SLO; `fraction` is of all measured requests that ended (failed ones are bad); `per_second` are
                        those that ended in the window. A request without a TPOT (one token) passes that SLO; without
                        any other figure that an SLO names it does not
tokens                  {input, output, reasoning, cached}: totals of completed requests, all phases but the warm-up
input_token_sources,
output_token_sources    {token source: requests}, of the same requests; the key is "none" where nothing was known
chunk_estimated         True where the server did not tell how many tokens the chunks of a measured request held: its
                        ITL then assumes that every chunk held as many
input_length,
output_length           statistics of tokens per completed, measured request
latency_ms              {metric: statistics} in ms; successful requests of the phase `measure` alone
speed                   {metric: statistics} in tokens per second, of the same requests
stalls                  {threshold_ms, count}: chunk gaps above the threshold, of the same requests

`latency_ms` has, with a_j the arrivals of chunks with content (the first byte of each) and k_j their tokens:
  queue_delay  sent - intended (open loop only)
  ttft         a_1 - sent              ttft_sched  a_1 - intended (open loop only): what a user who came on time saw
  ttfot        first token that is no reasoning - sent
  tpot         (a_m - a_1) / (N - k_1), k_1 = 1 where unknown; none for a single chunk or token. With several choices in
               one answer their decode times and tokens are added up first
  itl          gap_j / k_j, k_j times, pooled over all requests      icl  gap_j, pooled
  e2el         a_m - sent              e2el_sched  a_m - intended (open loop only)
  close_time   done - a_m
`speed` has decode_tps_user (1000 / tpot), e2e_tps_user (N / e2el) and prefill_tps (uncached prompt tokens / ttft).
An answer that was not streamed has no chunks in its record: it has no TTFT, TTFOT, TPOT or gaps, its E2EL is
`done - sent`, and its tokens arrived when it was done.

Statistics are {count, mean, median, std, min, max, p50, p75, p90, p95, p99, p99.9}: std of the sample (n - 1);
percentiles by linear interpolation, None where fewer than ten samples lie beyond them (p99 needs 1,000).

`time_buckets(records)` gives one dict per second of the run, without gaps, warm-up included:
  second       whole seconds since the run's start (negative for a warm-up ahead of it)
  sent, done, failed   requests by the time of that event (`done` completed; `failed` ended otherwise)
  tokens       output tokens that arrived
  in_flight    mean number of requests in flight
  ttft_p50_ms, ttft_p99_ms   of the first tokens that arrived in this second, however few
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.loadgen import windows
from benchmarks.loadgen.distribution import Distribution, describe
from benchmarks.loadgen.records import ErrorClass, Phase, RequestRecord, TokenSource
from benchmarks.loadgen.request_metrics import (
    SPEEDS,
    TIMES,
    chunk_gaps,
    first_arrival,
    is_chunk_estimated,
    last_arrival,
    token_arrivals,
    token_gaps,
    tpot,
)
from benchmarks.loadgen.sends import achieved_send_ratio, send_rate
from benchmarks.loadgen.windows import Window, time_buckets

__all__ = ["summarise", "time_buckets", "values_of"]

LATENCIES = (*TIMES, "itl", "icl")
STALL_MS = 500.0
MS = 1000.0


def summarise(
    records: Sequence[RequestRecord],
    *,
    slos: Mapping[str, float] | None = None,
    window: Window | None = None,
    stall_ms: float = STALL_MS,
) -> dict[str, Any]:
    """The summary described above.

    `slos` are limits in ms by name of a metric of `latency_ms` that is one number per request (ttft, tpot, e2el, ...);
    ValueError names one that is not. `window` is that of `phases.assign_phases`; without it, the measured window goes
    from the first send of the phase `measure` to the last arrival of its requests.
    """
    run = [record for record in records if record.phase is not Phase.WARMUP]
    measured = [record for record in run if record.phase is Phase.MEASURE]
    completed = [record for record in run if record.succeeded]
    good = [record for record in measured if record.succeeded]
    full = windows.run_window(run)
    window = window or windows.run_window(measured)
    values = [values_of(record) for record in good]
    return {
        "duration_s": _length(full),
        "window": None if window is None else list(window),
        "window_s": _length(window),
        **_outcomes(run, warmup=len(records) - len(run), measured=len(measured)),
        **_throughputs(run, full, window),
        "peak_output_throughput": windows.peak_tokens(run),
        "concurrency": _concurrency(run, window),
        "achieved_send_ratio": achieved_send_ratio(records),
        "send_rate": send_rate(records),
        "goodput": _goodput(measured, slos, window) if slos else None,
        "tokens": {
            "input": _total(record.prompt_tokens for record in completed),
            "output": _total(record.output_tokens for record in completed),
            "reasoning": _total(record.reasoning_tokens for record in completed),
            "cached": _total(record.cached_tokens for record in completed),
        },
        "input_token_sources": _sources(record.prompt_tokens_source for record in completed),
        "output_token_sources": _sources(record.output_tokens_source for record in completed),
        "chunk_estimated": any(is_chunk_estimated(record) for record in good),
        "input_length": describe(record.prompt_tokens for record in good if record.prompt_tokens is not None),
        "output_length": describe(record.output_tokens for record in good if record.output_tokens is not None),
        "latency_ms": {name: _pooled(values, "latency_ms", name) for name in LATENCIES},
        "speed": {name: _pooled(values, "speed", name) for name in SPEEDS},
        "stalls": {
            "threshold_ms": stall_ms,
            "count": sum(gap > stall_ms for one in values for gap in one["latency_ms"]["icl"]),
        },
    }


def values_of(record: RequestRecord) -> dict[str, dict[str, list[float]]]:
    """What one request contributes to each statistic of `latency_ms` (in ms) and of `speed`; often a single value."""
    times = {name: _known(metric(record), MS) for name, metric in TIMES.items()}
    times["itl"] = [MS * gap for gap in token_gaps(record)]
    times["icl"] = [MS * gap for gap in chunk_gaps(record)]
    return {"latency_ms": times, "speed": {name: _known(metric(record)) for name, metric in SPEEDS.items()}}


def _outcomes(run: Sequence[RequestRecord], *, warmup: int, measured: int) -> dict[str, Any]:
    errors = Counter(str(record.error) for record in run if record.error is not ErrorClass.NONE)
    completed = sum(record.succeeded for record in run)
    failed = errors.total()
    return {
        "requests": {
            "total": len(run),
            "completed": completed,
            "failed": failed,
            "cancelled": errors[str(ErrorClass.CANCELLED)],
            "warmup": warmup,
            "measured": measured,
        },
        "success_rate": completed / len(run) if run else None,
        "errors": {name: count for name, count in errors.items() if count},
    }


def _throughputs(run: Sequence[RequestRecord], full: Window | None, window: Window | None) -> dict[str, Any]:
    """By the time of each event in the window; over the whole run, all of the completed requests."""
    completed = [record for record in run if record.succeeded]
    inputs = _total(record.prompt_tokens for record in completed)
    outputs = _total(record.output_tokens for record in completed)
    requests_in = inputs_in = outputs_in = 0.0
    if window is not None:
        requests_in = sum(windows.contains(window, last_arrival(record)) for record in completed)
        inputs_in = sum(record.prompt_tokens or 0 for record in run if windows.contains(window, first_arrival(record)))
        arrivals = (arrival for record in run for arrival in token_arrivals(record))
        outputs_in = sum(tokens for time, tokens in arrivals if windows.contains(window, time))
    return {
        name: {"full": _per_second(amount, full), "measured": _per_second(amount_in, window)}
        for name, amount, amount_in in (
            ("request_throughput", len(completed), requests_in),
            ("output_throughput", outputs, outputs_in),
            ("input_throughput", inputs, inputs_in),
            ("total_token_throughput", inputs + outputs, inputs_in + outputs_in),
        )
    }


def _concurrency(run: Sequence[RequestRecord], window: Window | None) -> dict[str, float | None]:
    if window is None:
        return {"mean": None, "max": None}
    mean, most = windows.concurrency(run, window)
    return {"mean": mean, "max": most}


def _goodput(measured: Sequence[RequestRecord], slos: Mapping[str, float], window: Window | None) -> dict[str, Any]:
    for name in slos:
        if name not in TIMES:
            raise ValueError(f"slos: {name} is none of {', '.join(TIMES)}")
    ended = [record for record in measured if record.done is not None]
    good = [record for record in ended if _meets(record, slos)]
    in_window = sum(window is not None and windows.contains(window, last_arrival(record)) for record in good)
    return {
        "slos": dict(slos),
        "good": len(good),
        "fraction": len(good) / len(ended) if ended else None,
        "per_second": _per_second(in_window, window),
    }


def _meets(record: RequestRecord, slos: Mapping[str, float]) -> bool:
    if not record.succeeded:
        return False
    for name, limit in slos.items():
        value = TIMES[name](record)
        if value is None and TIMES[name] is tpot:
            continue
        if value is None or MS * value > limit:
            return False
    return True


def _pooled(values: Iterable[dict[str, dict[str, list[float]]]], family: str, name: str) -> Distribution:
    return describe(value for one in values for value in one[family][name])


def _known(value: float | None, factor: float = 1.0) -> list[float]:
    return [] if value is None else [factor * value]


def _sources(sources: Iterable[TokenSource]) -> dict[str, int]:
    return dict(Counter(str(source) or "none" for source in sources))


def _total(counts: Iterable[int | None]) -> int:
    return sum(count or 0 for count in counts)


def _length(window: Window | None) -> float | None:
    return None if window is None else window[1] - window[0]


def _per_second(amount: float, window: Window | None) -> float | None:
    return None if window is None or window[1] <= window[0] else amount / (window[1] - window[0])
