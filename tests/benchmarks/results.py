"""Results of runs, made by hand: a server that answers every request in the same time, but where told otherwise."""

from benchmarks.loadgen import metrics
from benchmarks.loadgen.records import (
    Chunk,
    ClientHealth,
    ErrorClass,
    Phase,
    RateChange,
    RequestRecord,
    RunResult,
    ServerSample,
    TokenSource,
)


def make_record(index: int, *, ttft: float = 0.1, gap: float = 0.02, tokens: int = 8, **changes) -> RequestRecord:
    """One request, sent `index` tenths of a second into the run; times are seconds."""
    sent = index / 10
    chunks = [Chunk(sent + ttft + gap * place, 1) for place in range(tokens)]
    facts = {
        "index": index,
        "worker": index % 2,
        "intended": sent,
        "sent": sent,
        "headers": sent + 0.01,
        "done": chunks[-1].time + 0.001,
        "chunks": chunks,
        "prompt_tokens": 32,
        "prompt_tokens_source": TokenSource.USAGE,
        "output_tokens": tokens,
        "output_tokens_source": TokenSource.USAGE,
        "finish_reason": "length",
        "http_status": 200,
        "bytes_in": 1000,
        "connection_reused": index > 0,
    }
    return RequestRecord(**{**facts, **changes})


def failed_record(index: int, error: ErrorClass = ErrorClass.HTTP_5XX) -> RequestRecord:
    return make_record(
        index,
        chunks=[],
        output_tokens=None,
        output_tokens_source=TokenSource.NONE,
        finish_reason=None,
        http_status=503,
        error=error,
        error_text="no engine is ready",
    )


def make_result(
    run_id: str = "run-1",
    *,
    requests: int = 20,
    failures: int = 2,
    ttft: float = 0.1,
    cancelled: bool = False,
    slos: dict[str, float] | None = None,
) -> RunResult:
    """A run whose times to first token rise slowly from `ttft`, and whose last `failures` requests fail."""
    records = [make_record(index, ttft=ttft * (1 + index / 100)) for index in range(requests - failures)]
    records += [failed_record(index) for index in range(requests - failures, requests)]
    records.append(make_record(requests, phase=Phase.WARMUP, user=3, session="s", turn=1, text="Hello"))
    summary = metrics.summarise(records, slos=slos)
    return RunResult(
        run_id=run_id,
        kind="serve",
        started_at="2026-03-01T12:00:00+00:00",
        duration=summary["duration_s"],
        cancelled=cancelled,
        profile={"num_prompts": requests, "request_rate": 10.0, "seed": 0, "dataset_name": "random"},
        environment={"revision": "abc1234", "python": "3.11"},
        server={"model": "tiny"},
        health=ClientHealth(verdict="ok", reasons=[], send_lag_p99_ms=0.5, achieved_send_ratio=1.0),
        rate_changes=[RateChange(0.0, 10.0)],
        summary=summary,
        records=records,
        server_samples=[ServerSample(0.5, 3.0, 1.0, 40.0), ServerSample(1.5, 4.0, None, None)],
    )
