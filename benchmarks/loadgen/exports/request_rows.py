"""One request as one row of a table: what was recorded, and the latencies that follow from it."""

from typing import Any

from benchmarks.loadgen import request_metrics
from benchmarks.loadgen.records import RequestRecord

RECORDED = (
    "index",
    "worker",
    "user",
    "session",
    "turn",
    "phase",
    "intended",
    "sent",
    "headers",
    "done",
    "prompt_tokens",
    "prompt_tokens_source",
    "output_tokens",
    "output_tokens_source",
    "reasoning_tokens",
    "cached_tokens",
    "expected_output_tokens",
    "finish_reason",
    "http_status",
    "error",
    "error_text",
    "bytes_in",
    "connection_reused",
)
DERIVED = ("chunks", "first_chunk", "last_chunk", "queue_delay_ms", "ttft_ms", "tpot_ms", "e2el_ms")
COLUMNS = (*RECORDED, *DERIVED)


def to_row(record: RequestRecord) -> dict[str, Any]:
    """Times are seconds since the run's start, latencies ms; None where there is none."""
    recorded = {name: getattr(record, name) for name in RECORDED}
    ended_well = record.succeeded
    return recorded | {
        "phase": record.phase.value,
        "prompt_tokens_source": record.prompt_tokens_source.value,
        "output_tokens_source": record.output_tokens_source.value,
        "error": record.error.value,
        "chunks": len(record.chunks),
        "first_chunk": record.chunks[0].time if record.chunks else None,
        "last_chunk": record.chunks[-1].time if record.chunks else None,
        "queue_delay_ms": _milliseconds(request_metrics.queue_delay(record)),
        "ttft_ms": _milliseconds(request_metrics.ttft(record)),
        "tpot_ms": _milliseconds(request_metrics.tpot(record)) if ended_well else None,
        "e2el_ms": _milliseconds(request_metrics.e2el(record)) if ended_well else None,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
