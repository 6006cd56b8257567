"""A long mixed load: short and long prompts, short and long answers, conversations, clients that leave in the middle.

What it looks for is what a short benchmark cannot show: memory that grows, steps that slow down, slots
that are not given back.
"""

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp

SAMPLE_SECONDS = 10.0
IDLE_SECONDS = 30.0  # how long the engine may take to be idle once the load has ended
POLL_SECONDS = 0.5
SILENT_SECONDS = 120.0  # after which a stream has failed
STATS_SECONDS = 60.0  # for the service to say how it stands
LEAVING_SHARE = 0.2  # of the clients' requests that are given up in the middle
LONG_PROMPT_SHARE = 0.1
TURN_SHARE = 0.2  # of the requests, that are turns of their client's own conversation
FIRST_ID, LAST_ID = 256, 65_000
LENGTHS = (8, 64, 256, 512)  # of answers, in tokens
COMPLETE, LEFT = "complete", "left"  # the outcomes of requests that went well: of all, or until their client left
MEANS = ("step_ms", "tokens_per_second", "resident_mb", "device_mb", "running")


@dataclass(frozen=True, slots=True)
class Sample:
    second: float
    running: int
    waiting: int
    step_ms: float
    tokens_per_second: float
    resident_mb: float  # of the engine process
    device_mb: float  # in use on the engine's device, by whatever there is


@dataclass(slots=True)
class Soak:
    seconds: float
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    missed_samples: int = 0  # moments at which the service did not say how it stood
    idle_at_end: bool = False

    def summary(self) -> dict[str, Any]:
        """First and last third of the run side by side; None for both in a run that was too short for a sample."""
        third = max(1, len(self.samples) // 3)
        return {
            "seconds": self.seconds,
            "outcomes": dict(self.outcomes),
            "missed_samples": self.missed_samples,
            "idle_at_end": self.idle_at_end,
            "first_third": _means(self.samples[:third]),
            "last_third": _means(self.samples[-third:]),
        }


def _means(samples: Sequence[Sample]) -> dict[str, float] | None:
    return {name: mean(getattr(one, name) for one in samples) for name in MEANS} if samples else None


async def run_soak(
    base_url: str, password: str, *, clients: int, seconds: float, report: Callable[[str], None]
) -> Soak:
    """Raises aiohttp.ClientError when the service cannot be reached at the start."""
    soak = Soak(seconds)
    headers = {"Authorization": f"Bearer {password}"} if password else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=STATS_SECONDS)
    async with aiohttp.ClientSession(
        base_url, headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        await _stats(session)
        until = time.monotonic() + seconds
        watcher = asyncio.create_task(_watch(session, soak, report))
        draw = random.Random(1)
        await asyncio.gather(*(_client(session, random.Random(draw.random()), until, soak) for _ in range(clients)))
        watcher.cancel()
        soak.idle_at_end = await _gets_idle(session)
    return soak


async def _gets_idle(session: aiohttp.ClientSession) -> bool:
    until = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < until:
        with suppress(aiohttp.ClientError):  # a service that is gone now must not take the soak's figures with it
            if (await _stats(session))["running"] == 0:
                return True
        await asyncio.sleep(POLL_SECONDS)
    return False


async def _client(session: aiohttp.ClientSession, draw: random.Random, until: float, soak: Soak) -> None:
    conversation = f"soak-{uuid.uuid4().hex}"
    while time.monotonic() < until:
        await asyncio.sleep(draw.expovariate(2.0))
        path, body = _turn(draw, conversation) if draw.random() < TURN_SHARE else _completion(draw)
        leave_after = draw.uniform(0.05, 2.0) if draw.random() < LEAVING_SHARE else None
        try:
            outcome = await asyncio.wait_for(_stream(session, path, body), leave_after)
        except aiohttp.ClientError as error:  # first: a stream that fell silent is a TimeoutError as well
            outcome = type(error).__name__
        except TimeoutError:
            outcome = LEFT
        soak.outcomes[outcome] += 1
    with suppress(aiohttp.ClientError):  # what is left of a service that is gone now is not the soak's
        (await session.post("/state/delete", json={"session_id": conversation})).release()


def _completion(draw: random.Random) -> tuple[str, dict[str, Any]]:
    long = draw.random() < LONG_PROMPT_SHARE
    length = draw.randint(1000, 6000) if long else draw.randint(4, 200)
    body = {"prompt": [draw.randint(FIRST_ID, LAST_ID) for _ in range(length)], "max_tokens": draw.choice(LENGTHS)}
    return "/v1/completions", body | _sampling(draw)


def _turn(draw: random.Random, conversation: str) -> tuple[str, dict[str, Any]]:
    said = " ".join(str(draw.randint(0, 9999)) for _ in range(draw.randint(1, 40)))
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": draw.choice(LENGTHS)}
    return "/v1/chat/completions", body | {"session_id": conversation} | _sampling(draw)


def _sampling(draw: random.Random) -> dict[str, Any]:
    return {
        "temperature": draw.choice((0, 0.7, 1.0)),
        "top_p": draw.choice((1.0, 0.6)),
        "frequency_penalty": draw.choice((0, 0.5)),
        "ignore_eos": True,
        "stream": True,
    }


async def _stream(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> str:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENT_SECONDS)
    async with session.post(path, json=body, timeout=timeout) as response:
        if response.status != 200:
            return f"status {response.status}"
        tail = b""
        async for data in response.content.iter_any():
            tail = (tail + data)[-4096:]
    if not tail.endswith(b"data: [DONE]\n\n"):
        return "cut off"
    return "error frame" if b'"error"' in tail else COMPLETE


async def _watch(session: aiohttp.ClientSession, soak: Soak, report: Callable[[str], None]) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        second = round(time.monotonic() - begun, 1)
        try:
            sample = await _sample(session, second)
        except aiohttp.ClientError as error:
            sample = None
            report(json.dumps({"second": second, "missed": f"{type(error).__name__}: {error}"}))
        if sample is None:
            soak.missed_samples += 1
            continue
        soak.samples.append(sample)
        report(json.dumps(asdict(sample) | {"outcomes": dict(soak.outcomes)}))


async def _sample(session: aiohttp.ClientSession, second: float) -> Sample | None:
    """None while there is no engine. Raises aiohttp.ClientError."""
    stats = await _stats(session)
    if not stats["engines"]:
        return None
    engine = stats["engines"][0]
    return Sample(
        second=second,
        running=stats["running"],
        waiting=stats["waiting"],
        step_ms=round(engine["step_ms"], 3),
        tokens_per_second=round(stats["generated_tokens_per_second"], 1),
        resident_mb=_resident_mb(engine["pid"]),
        device_mb=round((engine["memory_total"] - engine["memory_free"]) / 2**20, 1),
    )


async def _stats(session: aiohttp.ClientSession) -> dict[str, Any]:
    """Raises aiohttp.ClientError, also where it is refused."""
    async with session.get("/stats", raise_for_status=True) as response:
        return await response.json()


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:  # the engine is on another machine
        return 0.0
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return round(int(line.split()[1]) / 1024, 1)
