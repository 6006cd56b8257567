"""The result JSON of `vllm bench serve` and its predecessors; with `--append-result` a file has a line for each run."""

from datetime import UTC, datetime

from benchmarks.loadgen.exports.spec_decode import FIELDS as SPEC_DECODE
from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.imports.request_lists import LISTS, records_of
from benchmarks.loadgen.imports.results import Known, Throughputs, imported, latencies
from benchmarks.loadgen.records import RateChange, RunResult

NAME = "vllm"
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "icl", "e2el": "e2el"}  # its ITL is the gap between chunks
OPTIONS = (
    "backend",
    "label",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "ramp_up_strategy",
    "ramp_up_start_rps",
    "ramp_up_end_rps",
)
_RESULTS = {
    *("date", "endpoint_type", "model_id", "tokenizer_id", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests", "rtfx", "rps_change_events", "generated_texts", "errors"),
}


def recognises(source: Fields) -> bool:
    return (
        isinstance(source.values.get("request_throughput"), int | float) and "total_token_throughput" in source.values
    )


def read(source: Fields) -> list[RunResult]:
    figures = latencies(source, METRICS, "_ms")
    completed = source.count("completed")
    failed = source.count("failed")
    asked = source.count("num_prompts")
    if failed is None and completed is not None and asked is not None:
        failed = asked - completed  # older versions do not say it
    known = Known(
        duration=source.needed("duration"),
        completed=completed,
        failed=failed,
        input_tokens=source.count("total_input_tokens"),
        output_tokens=source.count("total_output_tokens"),
        throughputs=Throughputs(
            requests=source.needed("request_throughput"),
            output=source.number("output_throughput"),
            total=source.number("total_token_throughput"),
        ),
        peak_output_throughput=source.number("max_output_tokens_per_s"),
        concurrency_max=source.number("max_concurrent_requests"),
        goodput_per_second=source.number("request_goodput"),
        rtfx=source.number("rtfx") or None,  # 0 in a run without audio
        latency_ms=figures if completed != 0 else {},  # vLLM writes 0 where nothing completed
    )
    result = imported(
        source,
        NAME,
        known,
        started=_moment(source),
        model=source.text("model_id"),
        profile={
            **{name: source.values.get(name) for name in OPTIONS},
            "tokenizer": source.text("tokenizer_id"),
            "metadata": _metadata(source) or None,
        },
        rate_changes=[
            RateChange(event.needed("timestamp"), event.needed("rps"))
            for event in source.objects("rps_change_events")
            if isinstance(event.values.get("timestamp"), int | float)
        ],
        records=records_of(source),
    )
    spoken = {name: source.values[name] for name in SPEC_DECODE if source.values.get(name) is not None}
    if spoken:
        result.server["spec_decode"] = spoken
    return [result]


def _moment(source: Fields) -> datetime | None:
    """vLLM does not say its time zone; UTC is as good as any."""
    date = source.text("date")
    if not date:
        return None
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise source.bad("date", f"{date!r} is not of the form YYYYmmdd-HHMMSS") from None


def _metadata(source: Fields) -> dict[str, object]:
    """vLLM writes its user's key-value pairs between its own fields."""
    known = {*OPTIONS, *LISTS, *SPEC_DECODE, *_RESULTS}
    return {
        name: value
        for name, value in source.values.items()
        if name not in known and not name.endswith("_ms") and isinstance(value, str | int | float)
    }
