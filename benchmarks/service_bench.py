"""Closed-loop load on a running service: every client streams one completion after another."""

import asyncio
import json
import random
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp

from benchmarks.loadgen.distribution import percentile
from benchmarks.process_cpu import cpu_seconds

REQUESTS_PER_CLIENT = 4
WARM_UP_TOKENS = 4
PROGRESS_SECONDS = 5.0
REQUEST_SECONDS = 600.0
FIRST_ID, LAST_ID = 256, 65_000  # of the World vocabulary: ids that stand for text
TAIL_BYTES = 4096  # of a stream, which hold its last frames
FRAME_END = b"\n\n"
FRAMES_BEHIND_TEXT = 2  # the usage and [DONE]


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
    requests_per_client: int = REQUESTS_PER_CLIENT


@dataclass(frozen=True, slots=True)
class Timing:
    """One request, in seconds on one clock. `arrivals` has the time of each of its frames of text."""

    sent: float
    first: float
    last: float
    tokens: int
    arrivals: "array[float]"

    def tokens_between(self, start: float, end: float) -> float:
        """Those that came after `start` and not after `end`. Each frame is taken to hold as many as the others."""
        frames = bisect_right(self.arrivals, end) - bisect_right(self.arrivals, start)
        return self.tokens * frames / max(len(self.arrivals), 1)


@dataclass(slots=True)
class Progress:
    """What one case has done so far: of each client the requests that it is through with."""

    begun: float
    frames: int = 0
    clients: list[list[Timing]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Steady:
    """What came while all clients were busy."""

    seconds: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """Seconds used during a case; None where the processes are not to be seen from here."""

    web: float | None
    engine: float | None
    client: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One case. TTFT: time to the first token; TPOT: time per token behind the first.

    `seconds`, `tokens` and `tokens_per_second` are of the whole case: all clients begin at once, so that a wave of
    prefills is in it, and so is the end, where only some are still busy. Those of `steady` have neither (see `steady`).
    """

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
    steady_seconds: float | None  # None: some were through before others had begun
    steady_tokens: float | None
    steady_tokens_per_second: float | None
    client_cpu_percent: float  # of a core, by this process; near 100 the figures are its own


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
        own_before = time.process_time()
        progress = Progress(begun=time.perf_counter(), clients=[[] for _ in range(load.clients)])
        reporter = asyncio.create_task(_report(load, progress, report))
        try:
            async with asyncio.TaskGroup() as group:
                for timings in progress.clients:
                    group.create_task(_client(session, load, draw, progress, timings))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            reporter.cancel()
        seconds = time.perf_counter() - progress.begun
        cpu = Cpu(
            web=cpu_seconds(web) - web_before if web else None,
            engine=cpu_seconds(engine) - engine_before if engine else None,
            client=time.process_time() - own_before,
        )
    return _figures(progress.clients, seconds, cpu)


def steady(clients: Sequence[Sequence[Timing]]) -> Steady | None:
    """From the moment at which the last client has got its first token to the one at which the first is through.

    Each client has its requests in their order. None where nothing lies between the two.
    """
    start = max(requests[0].first for requests in clients)
    end = min(requests[-1].last for requests in clients)
    if end <= start:
        return None
    tokens = sum(request.tokens_between(start, end) for requests in clients for request in requests)
    return Steady(end - start, tokens)


async def _client(
    session: aiohttp.ClientSession, load: Load, draw: random.Random, progress: Progress, timings: list[Timing]
) -> None:
    for _ in range(load.requests_per_client):
        timings.append(await _stream(session, load, _prompt(draw, load), load.tokens, progress))


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
    sent = last = time.perf_counter()
    tail, arrivals = b"", array("d")
    try:
        async with session.post(f"{load.base_url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise RequestFailed(f"{response.status}: {await response.text()}")
            async for data in response.content.iter_any():
                last = time.perf_counter()
                ended = (tail[-1:] + data).count(FRAME_END)  # whose first half may have come before
                arrivals.extend([last] * ended)
                tail = (tail + data)[-TAIL_BYTES:]
                progress.frames += ended
    except TimeoutError:
        raise RequestFailed(f"a request had no end within {REQUEST_SECONDS:g} s") from None
    tokens = _completion_tokens(tail)
    del arrivals[-FRAMES_BEHIND_TEXT:]
    return Timing(sent, arrivals[0] if arrivals else last, last, tokens, arrivals)


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
    requests = load.clients * load.requests_per_client
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        done, seconds = sum(map(len, progress.clients)), time.perf_counter() - progress.begun
        report(f"{load.clients} clients: {done} of {requests} requests, {progress.frames} frames, {seconds:.0f} s")


def _figures(clients: Sequence[Sequence[Timing]], seconds: float, cpu: Cpu) -> Figures:
    timings = [timing for requests in clients for timing in requests]
    tokens = sum(timing.tokens for timing in timings)
    first = [1000 * (timing.first - timing.sent) for timing in timings]
    busy = steady(clients)
    return Figures(
        clients=len(clients),
        requests=len(timings),
        seconds=round(seconds, 3),
        tokens=tokens,
        tokens_per_second=round(tokens / seconds, 1),
        ttft_ms_p50=round(median(first), 2),
        ttft_ms_p99=round(percentile(sorted(first), 990), 2),
        tpot_ms_p50=round(median(1000 * (t.last - t.first) / max(t.tokens - 1, 1) for t in timings), 3),
        web_cpu_seconds_per_1000_tokens=_per_1000(cpu.web, tokens),
        engine_cpu_seconds_per_1000_tokens=_per_1000(cpu.engine, tokens),
        steady_seconds=busy and round(busy.seconds, 3),
        steady_tokens=busy and round(busy.tokens, 1),
        steady_tokens_per_second=busy and round(busy.tokens / busy.seconds, 1),
        client_cpu_percent=round(100 * cpu.client / seconds, 1),
    )


def _per_1000(cpu: float | None, tokens: int) -> float | None:
    return None if cpu is None else round(1000 * cpu / tokens, 4)
