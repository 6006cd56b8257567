"""The statistics JSON of vLLM's multi-turn benchmark: one object for each answered turn, times in ms."""

from typing import Any

import msgspec

from benchmarks.loadgen.exports import latencies
from benchmarks.loadgen.records import RequestRecord, RunResult
from benchmarks.loadgen.request_metrics import e2el, tpot, ttft

LEAST_TTFT_MS = 0.1


def write(result: RunResult) -> bytes:
    return msgspec.json.encode(to_rows(result)) + b"\n"


def to_rows(result: RunResult) -> list[dict[str, Any]]:
    """In the order of their sending. Figures that do not exist are None."""
    answered = [record for record in latencies.counted(result) if record.succeeded]
    before = {(record.session, record.turn + 1): record for record in answered}
    answered.sort(key=lambda record: record.sent or 0.0)
    return [_row(record, before.get((record.session, record.turn))) for record in answered]


def _row(record: RequestRecord, before: RequestRecord | None) -> dict[str, Any]:
    """`input_num_turns` counts messages, as vLLM's turns are."""
    return {
        "start_time_ms": _milliseconds(record.sent),
        "ttft_ms": _ttft(record),
        "tpot_ms": _milliseconds(tpot(record)),
        "latency_ms": _milliseconds(e2el(record)),
        "input_num_turns": 2 * record.turn + 1,
        "input_num_tokens": record.prompt_tokens,
        "output_num_tokens": record.output_tokens,
        "output_num_chunks": len(record.chunks),
        "output_num_first_chunk_tokens": record.chunks[0].tokens if record.chunks else None,
        "approx_cached_percent": _cached_percent(record, before),
        "conversation_id": record.session,
        "client_id": record.user,
    }


def _ttft(record: RequestRecord) -> float | None:
    """Without the decoding of the other tokens that the first chunk held."""
    whole, step = _milliseconds(ttft(record)), _milliseconds(tpot(record))
    if whole is None or step is None:
        return whole
    return max(LEAST_TTFT_MS, whole - ((record.chunks[0].tokens or 1) - 1) * step)


def _cached_percent(record: RequestRecord, before: RequestRecord | None) -> float | None:
    """How much of the prompt was said before: what the turn before it was asked and answered with."""
    if not record.prompt_tokens:
        return None
    if before is None:
        return 0.0 if record.turn == 0 else None
    history = (before.prompt_tokens or 0) + (before.output_tokens or 0)
    return min(100.0, 100 * history / record.prompt_tokens)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
