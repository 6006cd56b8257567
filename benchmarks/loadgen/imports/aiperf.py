"""The summary JSON of aiperf (`profile_export_aiperf.json`), whose form genai-perf shares.

Its `inter_token_latency` is what others call TPOT, its `inter_chunk_latency` our ICL.
"""

from datetime import UTC, datetime

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.imports.results import Known, Statistics, Throughputs, imported
from benchmarks.loadgen.records import RunResult

NAME = "aiperf"
LATENCIES = {
    "time_to_first_token": "ttft",
    "time_to_first_output_token": "ttfot",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "icl",
    "request_latency": "e2el",
}
SPEEDS = {
    "output_token_throughput_per_user": "decode_tps_user",
    "e2e_output_token_throughput": "e2e_tps_user",
    "prefill_throughput_per_user": "prefill_tps",
}
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}
STATISTICS = {"mean": "avg", "median": "p50", **{name: name for name in ("std", "min", "max", "p50", "p75", "p90")}}
STATISTICS |= {"p95": "p95", "p99": "p99", "count": "count"}


def recognises(source: Fields) -> bool:
    latency = source.values.get("request_latency")
    return isinstance(latency, dict) and "unit" in latency and "avg" in latency


def read(source: Fields) -> list[RunResult]:
    completed = _count(source, "request_count")
    known = Known(
        duration=_value(source, "benchmark_duration"),
        completed=completed,
        failed=_count(source, "error_request_count") or (0 if source.values.get("error_summary") == [] else None),
        input_tokens=_count(source, "total_isl"),
        output_tokens=_count(source, "total_osl"),
        throughputs=Throughputs(
            requests=_value(source, "request_throughput"),
            output=_value(source, "output_token_throughput"),
            total=_value(source, "total_token_throughput"),
        ),
        concurrency_mean=_value(source, "effective_concurrency"),
        goodput_per_second=_value(source, "goodput"),
        goodput_fraction=_value(source, "good_request_fraction"),
        input_length=_statistics(source, "input_sequence_length", 1.0),
        output_length=_statistics(source, "output_sequence_length", 1.0),
        latency_ms={
            ours: _statistics(source, theirs, _milliseconds(source, theirs))
            for theirs, ours in LATENCIES.items()
            if theirs in source.values
        },
        speed={ours: _statistics(source, theirs, 1.0) for theirs, ours in SPEEDS.items() if theirs in source.values},
    )
    run = source.inner("run_info")
    return [
        imported(
            source,
            NAME,
            known,
            started=_moment(source),
            profile={
                "label": run.text("run_label"),
                "seed": run.count("random_seed"),
                "command": run.text("cli_command"),
            },
            environment={"aiperf": version} if (version := source.text("aiperf_version")) else {},
            cancelled=source.values.get("was_cancelled") is True,
        )
    ]


def _value(source: Fields, name: str) -> float | None:
    """A figure that is no distribution stands in its `avg`."""
    return source.inner(name).number("avg")


def _count(source: Fields, name: str) -> int | None:
    return source.inner(name).count("avg")


def _statistics(source: Fields, name: str, factor: float) -> Statistics:
    found = source.inner(name)
    values = {ours: found.number(theirs) for ours, theirs in STATISTICS.items()}
    return {ours: value * factor if value is not None and ours != "count" else value for ours, value in values.items()}


def _milliseconds(source: Fields, name: str) -> float:
    unit = source.inner(name).text("unit")
    if unit not in MILLISECONDS:
        raise source.inner(name).bad("unit", f"{unit!r} is no unit of time that is known here")
    return MILLISECONDS[unit]


def _moment(source: Fields) -> datetime | None:
    text = source.text("start_time")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise source.bad("start_time", f"{text!r} is not a time of ISO 8601") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
