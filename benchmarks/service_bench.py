"""Closed-loop load on a running service: every client streams one completion after another.

Some hundred clients that act at one moment keep one process busy for longer than the service takes to answer, so they
may be shared out among several.
"""

import asyncio
import json
import os
import random
import time
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any

import aiohttp

from benchmarks.loadgen.distribution import percentile
from benchmarks.process_cpu import cpu_seconds

REQUESTS_PER_CLIENT = 4
WARM_UP_TOKENS = 4
PROGRESS_SECONDS = 5.0
COUNT_SECONDS = 0.5  # after which a process says how far it is
JOIN_SECONDS = 60.0  # for all processes to be there
CORES_PER_PROCESS = 4  # the service wants the others
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
    """What the clients of one process have done so far: of each client the requests that it is through with."""

    frames: int = 0
    clients: list[list[Timing]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(map(len, self.clients))


@dataclass(frozen=True, slots=True)
class Done:
    """What one process is through with, and the CPU time that took it."""

    clients: list[list[Timing]]
    cpu_seconds: float


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
    client: float  # of the process that used most


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
    client_cpu_percent: float  # of a core, by the busiest process of clients; near 100 the figures are its own


def default_processes() -> int:
    """For clients that run beside the service."""
    return max(1, (os.cpu_count() or 1) // CORES_PER_PROCESS)


async def run_case(
    load: Load, *, web: set[int], engine: set[int], report: Callable[[str], None], processes: int = 1
) -> Figures:
    """Run one case, with one short request ahead of it. Raises RequestFailed or aiohttp.ClientError.

    `web` and `engine` are the processes whose CPU time is counted; `report` gets a line of progress now and then. The
    clients are shared out among `processes`; one is this very process.
    """
    async with _session(load) as session:
        await _stream(session, load, _prompt(random.Random(), load), WARM_UP_TOKENS, Progress())
    web_before, engine_before = cpu_seconds(web), cpu_seconds(engine)
    shares = [load.clients // processes + (place < load.clients % processes) for place in range(processes)]
    loads = [replace(load, clients=clients) for clients in shares if clients]
    done = [await _drive_here(load, report)] if len(loads) == 1 else await _drive_apart(load, loads, report)
    cpu = Cpu(
        web=cpu_seconds(web) - web_before if web else None,
        engine=cpu_seconds(engine) - engine_before if engine else None,
        client=max(one.cpu_seconds for one in done),
    )
    return _figures([requests for one in done for requests in one.clients], cpu)


async def _drive_here(load: Load, report: Callable[[str], None]) -> Done:
    progress = Progress()
    reporter = asyncio.create_task(_report(load, lambda: (progress.requests, progress.frames), report))
    try:
        return await _drive(load, progress)
    finally:
        reporter.cancel()


async def _drive(load: Load, progress: Progress) -> Done:
    """All clients of `load`, until they are through. Raises RequestFailed or aiohttp.ClientError."""
    # New prompts each time: a server may remember the state behind those it has seen.
    draw = random.Random()
    progress.clients = [[] for _ in range(load.clients)]
    before = time.process_time()
    async with _session(load) as session:
        try:
            async with asyncio.TaskGroup() as group:
                for timings in progress.clients:
                    group.create_task(_client(session, load, draw, progress, timings))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
    return Done(progress.clients, time.process_time() - before)


async def _drive_apart(load: Load, loads: Sequence[Load], report: Callable[[str], None]) -> list[Done]:
    """Each of `loads` in a process of its own; all begin at one moment. If one fails, so does the case."""
    context = get_context("spawn")
    together, counts = context.Barrier(len(loads)), context.Array("q", 2 * len(loads))
    pipes, workers = [], []
    for place, one in enumerate(loads):
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(one, theirs, together, counts, place), daemon=True)
        worker.start()
        theirs.close()  # so that ours ends with the worker
        pipes.append(ours)
        workers.append(worker)
    reporter = asyncio.create_task(_report(load, lambda: (sum(counts[::2]), sum(counts[1::2])), report))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.to_thread(_result, pipe, workers)) for pipe in pipes]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        reporter.cancel()
        for worker in workers:
            worker.terminate()
            worker.join()
    return [task.result() for task in tasks]


def _result(pipe: Connection, workers: Sequence[Any]) -> Done:
    """What a process sends. If that is a failure, the others are ended, and nobody waits for them any more."""
    try:
        found = pipe.recv()
    except EOFError:
        found = "a process of clients ended before its load did"
    if isinstance(found, Done):
        return found
    for worker in workers:
        worker.terminate()
    raise RequestFailed(found)


def _work(load: Load, pipe: Connection, together: Barrier, counts: Any, place: int) -> None:
    """A process of clients."""
    with suppress(BrokenPipeError):  # nobody wants to know any more
        try:
            together.wait(JOIN_SECONDS)
            pipe.send(asyncio.run(_drive_counted(load, counts, place)))
        except (RequestFailed, aiohttp.ClientError) as error:
            pipe.send(str(error))


async def _drive_counted(load: Load, counts: Any, place: int) -> Done:
    progress = Progress()

    async def count() -> None:
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            counts[2 * place], counts[2 * place + 1] = progress.requests, progress.frames

    counting = asyncio.create_task(count())
    try:
        return await _drive(load, progress)
    finally:
        counting.cancel()


@asynccontextmanager
async def _session(load: Load) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {load.password}"} if load.password else {}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=aiohttp.ClientTimeout(REQUEST_SECONDS)
    ) as session:
        yield session


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


async def _report(load: Load, counts: Callable[[], tuple[int, int]], report: Callable[[str], None]) -> None:
    requests, begun = load.clients * load.requests_per_client, time.perf_counter()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        (done, frames), seconds = counts(), time.perf_counter() - begun
        report(f"{load.clients} clients: {done} of {requests} requests, {frames} frames, {seconds:.0f} s")


def _figures(clients: Sequence[Sequence[Timing]], cpu: Cpu) -> Figures:
    timings = [timing for requests in clients for timing in requests]
    tokens = sum(timing.tokens for timing in timings)
    seconds = max(timing.last for timing in timings) - min(timing.sent for timing in timings)
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
