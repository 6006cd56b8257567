"""The JSON report of guidellm: a run for each of its benchmarks.

Its `inter_token_latency_ms` is what others call TPOT; its own TPOT includes the first token and has no place here.
"""

from datetime import UTC, datetime

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.imports.results import Known, Statistics, Throughputs, imported
from benchmarks.loadgen.records import RunResult

NAME = "guidellm"
LATENCIES = {  # theirs: (ours, ms in their unit)
    "time_to_first_token_ms": ("ttft", 1.0),
    "inter_token_latency_ms": ("tpot", 1.0),
    "request_latency": ("e2el", 1000.0),
}
PERCENTILES = ("p50", "p75", "p90", "p95", "p99")


def recognises(source: Fields) -> bool:
    benchmarks = source.values.get("benchmarks")
    return isinstance(benchmarks, list) and bool(benchmarks) and "metrics" in benchmarks[0]


def read(source: Fields) -> list[RunResult]:
    return [_read_one(benchmark) for benchmark in source.objects("benchmarks")]


def _read_one(source: Fields) -> RunResult:
    metrics = source.inner("metrics")
    totals = metrics.inner("request_totals")
    inputs, outputs = (_statistics(metrics, name, 1.0) for name in ("prompt_token_count", "output_token_count"))
    incomplete, errored = totals.count("incomplete"), totals.count("errored")
    known = Known(
        duration=source.number("duration"),
        completed=totals.count("successful"),
        failed=None if incomplete is None or errored is None else incomplete + errored,
        cancelled=incomplete,
        input_tokens=_successful(metrics, "prompt_token_count").count("total_sum"),
        output_tokens=_successful(metrics, "output_token_count").count("total_sum"),
        throughputs=Throughputs(
            requests=_successful(metrics, "requests_per_second").number("mean"),
            input=_successful(metrics, "prompt_tokens_per_second").number("mean"),
            output=_successful(metrics, "output_tokens_per_second").number("mean"),
            total=_successful(metrics, "tokens_per_second").number("mean"),
        ),
        concurrency_mean=_successful(metrics, "request_concurrency").number("mean"),
        concurrency_max=_successful(metrics, "request_concurrency").number("max"),
        input_length=inputs,
        output_length=outputs,
        latency_ms={
            ours: found
            for theirs, (ours, factor) in LATENCIES.items()
            if (found := _statistics(metrics, theirs, factor))
        },
    )
    strategy = source.inner("config").inner("strategy")
    started = source.number("start_time")
    return imported(
        source,
        NAME,
        known,
        started=None if started is None else datetime.fromtimestamp(started, UTC),
        profile={
            "label": strategy.text("type_"),
            "request_rate": strategy.number("rate"),
            "max_concurrency": strategy.count("max_concurrency") or strategy.count("streams"),
        },
    )


def _successful(metrics: Fields, name: str) -> Fields:
    return metrics.inner(name).inner("successful")


def _statistics(metrics: Fields, name: str, factor: float) -> Statistics:
    """Empty where nothing was measured."""
    found = _successful(metrics, name)
    if not found.values or found.number("count") == 0:
        return {}
    plain = {"mean": "mean", "median": "median", "std": "std_dev", "min": "min", "max": "max"}
    values = {ours: found.number(theirs) for ours, theirs in plain.items()}
    values |= {share: found.inner("percentiles").number(share) for share in PERCENTILES}
    scaled = {key: None if value is None else value * factor for key, value in values.items()}
    return {"count": found.number("count"), **scaled}
