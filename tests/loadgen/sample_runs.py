"""Runs made by hand: one whose figures can be worked out on paper, and noisy ones for comparisons."""

from random import Random

from benchmarks.loadgen import metrics
from benchmarks.loadgen.records import (
    Chunk,
    ClientHealth,
    ErrorClass,
    Phase,
    RateChange,
    RequestRecord,
    RunResult,
    TokenSource,
)


def small_run() -> RunResult:
    """One request of warm-up, three that succeed and one that fails.

    TTFT 100, 200, 300 ms; chunk gaps 100, 200 and 300 ms; E2EL 400, 500, 300 ms; 3, 4 and 1 tokens, of which the
    second request's came two in a chunk; 2.3 s from the first send to the last arrival.
    """
    records = [
        _answered(0, -1.0, [(-0.5, 1)], prompt=5, phase=Phase.WARMUP),
        _answered(1, 0.0, [(0.1, 1), (0.2, 1), (0.4, 1)], prompt=10),
        _answered(2, 1.0, [(1.2, 2), (1.5, 2)], prompt=20),
        _answered(3, 2.0, [(2.3, 1)], prompt=30),
        RequestRecord(
            index=4,
            intended=2.1,
            sent=2.1,
            done=2.2,
            http_status=503,
            error=ErrorClass.HTTP_5XX,
            error_text='=HYPERLINK("x") <b>busy</b>',
        ),
    ]
    return RunResult(
        run_id="run-by-hand",
        kind="serve",
        started_at="2026-11-20T10:30:05+00:00",
        duration=2.3,
        cancelled=False,
        profile={
            "label": "nightly",
            "backend": "openai",
            "tokenizer": "rwkv",
            "num_prompts": 4,
            "request_rate": 2.0,
            "burstiness": 1.0,
            "max_concurrency": 8,
            "ramp_up_strategy": "",
            "ramp_up_start_rps": None,
            "ramp_up_end_rps": None,
            "seed": 7,
            "metadata": {"gpu": "one"},
        },
        environment={"versions": {"python": "3.11"}},
        server={"model": "team/rwkv7-test"},
        health=ClientHealth(verdict="ok", reasons=[]),
        rate_changes=[RateChange(0.0, 2.0)],
        summary=metrics.summarise(records, slos={"ttft": 250.0}),
        records=records,
    )


def noisy_run(seed: int, *, slower: float = 1.0, label: str = "", requests: int = 200) -> RunResult:
    """Twenty requests a second. `slower` stretches every latency; runs differ by 2% from one to the next."""
    random = Random(seed)
    slower *= random.gauss(1.0, 0.02)
    records = []
    for index in range(requests):
        sent = index / 20
        arrival = sent + slower * random.lognormvariate(-2.5, 0.3)
        chunks = [(arrival, 1)]
        for _ in range(random.randint(10, 20)):
            arrival += slower * random.uniform(0.008, 0.012)
            chunks.append((arrival, 1))
        records.append(_answered(index, sent, chunks, prompt=100))
    profile = {"backend": "openai", "request_rate": 20.0, "seed": 0, **({"label": label} if label else {})}
    return RunResult(
        run_id=f"run-{seed}",
        kind="serve",
        started_at="2026-11-20T10:30:05+00:00",
        duration=requests / 20,
        cancelled=False,
        profile=profile,
        environment={},
        server={"model": "rwkv7-test"},
        health=ClientHealth(verdict="ok", reasons=[]),
        rate_changes=[],
        summary=metrics.summarise(records),
        records=records,
    )


def _answered(
    index: int, sent: float, chunks: list[tuple[float, int]], *, prompt: int, phase: Phase = Phase.MEASURE
) -> RequestRecord:
    return RequestRecord(
        index=index,
        phase=phase,
        intended=sent,
        sent=sent,
        chunks=[Chunk(time, tokens) for time, tokens in chunks],
        done=chunks[-1][0],
        prompt_tokens=prompt,
        prompt_tokens_source=TokenSource.USAGE,
        output_tokens=sum(tokens for _, tokens in chunks),
        output_tokens_source=TokenSource.USAGE,
        finish_reason="length",
        http_status=200,
        text="answer",
    )
