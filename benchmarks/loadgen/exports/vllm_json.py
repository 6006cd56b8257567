"""The result JSON of `vllm bench serve`, field for field, for whatever reads such files."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from benchmarks.loadgen import windows
from benchmarks.loadgen.exports import latencies, spec_decode
from benchmarks.loadgen.records import RequestRecord, RunResult
from benchmarks.loadgen.request_metrics import chunk_gaps, ttft

DEFAULT_PERCENTILES = (99.0,)


def write(result: RunResult) -> bytes:
    return msgspec.json.encode(to_vllm(result, detailed=True)) + b"\n"


def to_vllm(result: RunResult, detailed: bool) -> dict[str, Any]:
    """vLLM's fields with vLLM's meaning; a figure that does not exist is None, where vLLM writes 0.

    Two are better than the original: `max_output_tokens_per_s` counts tokens where vLLM counts chunks, and
    `max_concurrent_requests` is exact where vLLM counts everyone who was there at some time of a second.
    `detailed` adds the lists with an entry for each request, failed ones included.
    """
    profile, summary = result.profile, result.summary
    requests, tokens = summary.get("requests") or {}, summary.get("tokens") or {}
    fields: dict[str, Any] = {
        **(profile.get("metadata") or {}),
        "date": stamp(result),
        "endpoint_type": profile.get("backend"),
        "backend": profile.get("backend"),
        "label": profile.get("label"),
        "model_id": model_id(result),
        "tokenizer_id": profile.get("tokenizer"),
        "num_prompts": profile.get("num_prompts") or requests.get("total"),
        "request_rate": profile.get("request_rate", "inf"),
        "burstiness": profile.get("burstiness"),
        "max_concurrency": profile.get("max_concurrency") or profile.get("users"),
        "ramp_up_strategy": profile.get("ramp_up_strategy") or None,
        "ramp_up_start_rps": profile.get("ramp_up_start_rps"),
        "ramp_up_end_rps": profile.get("ramp_up_end_rps"),
        "duration": summary.get("duration_s", result.duration),
        "completed": requests.get("completed"),
        "failed": requests.get("failed"),
        "total_input_tokens": tokens.get("input"),
        "total_output_tokens": tokens.get("output"),
        "request_throughput": _full(summary, "request_throughput"),
        "request_goodput": _goodput(result),
        "output_throughput": _full(summary, "output_throughput"),
        "total_token_throughput": _full(summary, "total_token_throughput"),
        "max_output_tokens_per_s": summary.get("peak_output_throughput"),
        "max_concurrent_requests": _most_in_flight(result),
        "rtfx": summary.get("rtfx"),
        **spec_decode.of_server(result.server),
        "rps_change_events": [{"rps": change.rate, "timestamp": change.time} for change in result.rate_changes],
    }
    percentiles = profile.get("metric_percentiles") or DEFAULT_PERCENTILES
    for metric, statistics in latencies.statistics(result, _numbers(percentiles)).items():
        fields |= {f"{name}_{metric}_ms": value for name, value in statistics.items() if name not in ("min", "max")}
    return fields | (_lists(latencies.counted(result)) if detailed else {})


def file_name(result: RunResult) -> str:
    """`{label}-{rate}qps[-concurrencyN]-{model}-{YYYYmmdd-HHMMSS}.json`; the label defaults to the back end."""
    profile = result.profile
    users = profile.get("max_concurrency") or profile.get("users")
    parts = [
        profile.get("label") or profile.get("backend") or result.kind,
        f"{profile.get('request_rate', 'inf')}qps",
        *([f"concurrency{users}"] if users else []),
        (model_id(result) or "model").rpartition("/")[2],
        stamp(result),
    ]
    return re.sub(r"[^\w.+-]", "_", "-".join(parts)) + ".json"


def model_id(result: RunResult) -> str | None:
    return result.server.get("model") or result.profile.get("model") or None


def stamp(result: RunResult) -> str:
    """The start as `YYYYmmdd-HHMMSS`, UTC."""
    return datetime.fromisoformat(result.started_at).strftime("%Y%m%d-%H%M%S")


def _full(summary: dict[str, Any], name: str) -> float | None:
    """vLLM's duration goes from the first send to the last arrival."""
    return (summary.get(name) or {}).get("full")


def _goodput(result: RunResult) -> float | None:
    """Good requests per second of the whole run; ours is of the measured window. None where no limits are known to
    count again by, unless the run is imported and brings the figure itself.
    """
    goodput, duration = result.summary.get("goodput") or {}, result.summary.get("duration_s")
    slos = goodput.get("slos")
    if not slos:
        return goodput.get("per_second")
    if not result.records or not duration:
        return None
    return latencies.good_requests(result, slos) / duration


def _numbers(percentiles: str | Sequence[float]) -> list[float]:
    return [float(one) for one in (percentiles.split(",") if isinstance(percentiles, str) else percentiles)]


def _most_in_flight(result: RunResult) -> float | None:
    records = latencies.counted(result)
    window = windows.run_window(records)
    if window is None:
        return (result.summary.get("concurrency") or {}).get("max")
    return windows.concurrency(records, window)[1]


def _lists(records: list[RequestRecord]) -> dict[str, list[Any]]:
    """A failed request has 0 tokens, 0.0 as its TTFT and no gaps."""
    return {
        "input_lens": [record.prompt_tokens or 0 for record in records],
        "output_lens": [(record.output_tokens or 0) if record.succeeded else 0 for record in records],
        "ttfts": [(ttft(record) or 0.0) if record.succeeded else 0.0 for record in records],
        "itls": [chunk_gaps(record) if record.succeeded else [] for record in records],
        "start_times": [record.sent for record in records],
        "generated_texts": [record.text or "" for record in records],
        "errors": ["" if record.succeeded else record.error_text or record.error.value for record in records],
    }
