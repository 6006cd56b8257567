"""Closed-loop load on a running service: every client streams one completion after another."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import aiohttp

from benchmarks.process_cpu import cpu_seconds

REQUESTS_PER_CLIENT = 4
WARM_UP_TOKENS = 4
PROGRESS_SECONDS = 5.0
REQUEST_SECONDS = 600.0
FIRST_ID, LAST_ID = 256, 65_000  # of the World vocabulary: ids that stand for text
TAIL_BYTES = 4096  # of a stream, which hold its last frames


class RequestFailed(Exception):
    """The service refused a request, or broke a stream off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one case asks of the service."""

    base_url: str
    password: str
    model: str
    clients: int
    tokens: int  # generated per request
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """One request, in seconds on one clock."""

    sent: float
    first: float
    last: float
    tokens: int


@dataclass(slots=True)
class Progress:
    """What one case has done so far."""

    begun: float
    frames: int = 0
    timings: list[Timing] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One case. TTFT: time to the first token; TPOT: time per token behind the first."""

    clients: int
    requests: int
    seconds: float
    tokens: int
    tokens_per_second: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    tpot_ms_p50: float
    web_cpu_seconds_per_1000_tokens: float | None  # None: its processes are not to be seen from here
    engine_cpu_seconds_per_1000_tokens: float | None


async def run_case(load: Load, *, web: set[int], engine: set[int], report: Callable[[str], None]) -> Figures:
    """Run one case, with one short request ahead of it. Raises RequestFailed or aiohttp.ClientError.

    `web` and `engine` are the processes whose CPU time is counted; `report` gets a line of progress now and then.
    """
    # New prompts each time: a server may remember the state behind those it has seen.
    draw = random.Random()
    headers = {"Authorization": f"Bearer {load.password}"} if load.password else {}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=aiohttp.ClientTimeout(REQUEST_SECONDS)
    ) as session:
        await _stream(session, load, _prompt(draw, load), WARM_UP_TOKENS, Progress(0.0))
        web_before, engine_before = cpu_seconds(web), cpu_seconds(engine)
        progress = Progress(begun=time.perf_counter())
        reporter = asyncio.create_task(_report(load, progress, report))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(load.clients):
                    group.create_task(_client(session, load, draw, progress))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            reporter.cancel()
        seconds = time.perf_counter() - progress.begun
        web_cpu, engine_cpu = cpu_seconds(web) - web_before, cpu_seconds(engine) - engine_before
    return _figures(load, progress.timings, seconds, web_cpu if web else None, engine_cpu if engine else None)


async def _client(session: aiohttp.ClientSession, load: Load, draw: random.Random, progress: Progress) -> None:
    for _ in range(REQUESTS_PER_CLIENT):
        progress.timings.append(await _stream(session, load, _prompt(draw, load), load.tokens, progress))


async def _stream(
    session: aiohttp.ClientSession, load: Load, prompt: Sequence[int], tokens: int, progress: Progress
) -> Timing:
    body = {
        "model": load.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = time.perf_counter()
    first = last = 0.0
    tail = b""
    async with session.post(f"{load.base_url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RequestFailed(f"{response.status}: {await response.text()}")
        async for data in response.content.iter_any():
            last = time.perf_counter()
            first = first or last
            tail = (tail + data)[-TAIL_BYTES:]
            progress.frames += data.count(b"\n\n")
    return Timing(sent, first, last, _completion_tokens(tail))


def _completion_tokens(tail: bytes) -> int:
    """From the last frame before [DONE]. Raises RequestFailed where that is not the usage."""
    *_, last, done, rest = [b"", b"", *tail.split(b"\n\n")]
    if (done, rest) != (b"data: [DONE]", b""):
        raise RequestFailed("a stream ended without [DONE]")
    frame: dict[str, Any] = json.loads(last.removeprefix(b"data: "))
    if "error" in frame:
        raise RequestFailed(f"a stream failed: {frame['error']['message']}")
    return frame["usage"]["completion_tokens"]


def _prompt(draw: random.Random, load: Load) -> list[int]:
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(load.prompt_tokens)]


async def _report(load: Load, progress: Progress, report: Callable[[str], None]) -> None:
    requests = load.clients * REQUESTS_PER_CLIENT
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        done, seconds = len(progress.timings), time.perf_counter() - progress.begun
        report(f"{load.clients} clients: {done} of {requests} requests, {progress.frames} frames, {seconds:.0f} s")


def _figures(
    load: Load, timings: list[Timing], seconds: float, web_cpu: float | None, engine_cpu: float | None
) -> Figures:
    tokens = sum(timing.tokens for timing in timings)
    first = [1000 * (timing.first - timing.sent) for timing in timings]
    return Figures(
        clients=load.clients,
        requests=len(timings),
        seconds=round(seconds, 3),
        tokens=tokens,
        tokens_per_second=round(tokens / seconds, 1),
        ttft_ms_p50=round(median(first), 2),
        ttft_ms_p99=round(quantiles(first, n=100, method="inclusive")[98], 2),
        tpot_ms_p50=round(median(1000 * (t.last - t.first) / max(t.tokens - 1, 1) for t in timings), 3),
        web_cpu_seconds_per_1000_tokens=_per_1000(web_cpu, tokens),
        engine_cpu_seconds_per_1000_tokens=_per_1000(engine_cpu, tokens),
    )


def _per_1000(cpu: float | None, tokens: int) -> float | None:
    return None if cpu is None else round(1000 * cpu / tokens, 4)
