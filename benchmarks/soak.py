"""A long mixed load: short and long prompts, short and long answers, clients that leave in the middle.

What it looks for is what a short benchmark cannot show: memory that grows, steps that slow down, slots
that are not given back.
"""

import asyncio
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

SAMPLE_SECONDS = 10.0
IDLE_SECONDS = 30.0  # how long the engine may take to be idle once the load has ended
LEAVING_SHARE = 0.2  # of the clients' requests that are given up in the middle
LONG_PROMPT_SHARE = 0.1
FIRST_ID, LAST_ID = 256, 65_000


@dataclass(frozen=True, slots=True)
class Sample:
    second: float
    running: int
    waiting: int
    step_ms: float
    tokens_per_second: float
    resident_mb: float  # of the engine process
    gpu_mb: float  # in use on the first GPU, 0 without one


@dataclass(slots=True)
class Soak:
    seconds: float
    outcomes: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    idle_at_end: bool = False

    def summary(self) -> dict[str, Any]:
        """First and last third of the run side by side."""
        third = max(1, len(self.samples) // 3)
        parts = {"first_third": self.samples[:third], "last_third": self.samples[-third:]}
        means = {
            name: {what: sum(getattr(one, what) for one in part) / len(part) for what in
                   ("step_ms", "tokens_per_second", "resident_mb", "gpu_mb", "running")}
            for name, part in parts.items()
        }  # fmt: skip
        return {"seconds": self.seconds, "outcomes": dict(self.outcomes), "idle_at_end": self.idle_at_end, **means}


async def run_soak(
    base_url: str, password: str, *, clients: int, seconds: float, report: Callable[[str], None]
) -> Soak:
    """Raises aiohttp.ClientError when the service cannot be reached at all."""
    soak = Soak(seconds)
    until = time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {password}"} if password else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    async with aiohttp.ClientSession(
        base_url, headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        watcher = asyncio.create_task(_watch(session, soak, report))
        draw = random.Random(1)
        await asyncio.gather(*(_client(session, random.Random(draw.random()), until, soak) for _ in range(clients)))
        watcher.cancel()
        idle_until = time.monotonic() + IDLE_SECONDS
        while not soak.idle_at_end and time.monotonic() < idle_until:
            soak.idle_at_end = (await _stats(session))["running"] == 0
            await asyncio.sleep(0.5)
    return soak


async def _client(session: aiohttp.ClientSession, draw: random.Random, until: float, soak: Soak) -> None:
    while time.monotonic() < until:
        await asyncio.sleep(draw.expovariate(2.0))
        long = draw.random() < LONG_PROMPT_SHARE
        length = draw.randint(1000, 6000) if long else draw.randint(4, 200)
        body = {
            "prompt": [draw.randint(FIRST_ID, LAST_ID) for _ in range(length)],
            "max_tokens": draw.choice((8, 64, 256, 512)),
            "temperature": draw.choice((0, 0.7, 1.0)),
            "top_p": draw.choice((1.0, 0.6)),
            "frequency_penalty": draw.choice((0, 0.5)),
            "ignore_eos": True,
            "stream": True,
        }
        leave_after = draw.uniform(0.05, 2.0) if draw.random() < LEAVING_SHARE else None
        try:
            outcome = await asyncio.wait_for(_stream(session, body), leave_after)
        except TimeoutError:
            outcome = "left"
        except aiohttp.ClientError as error:
            outcome = type(error).__name__
        soak.outcomes[outcome] += 1


async def _stream(session: aiohttp.ClientSession, body: dict[str, Any]) -> str:
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            return f"status {response.status}"
        tail = b""
        async for data in response.content.iter_any():
            tail = (tail + data)[-4096:]
    if not tail.endswith(b"data: [DONE]\n\n"):
        return "cut off"
    return "error frame" if b'"error"' in tail else "complete"


async def _watch(session: aiohttp.ClientSession, soak: Soak, report: Callable[[str], None]) -> None:
    begun = time.monotonic()
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        stats = await _stats(session)
        engine = stats["engines"][0]
        sample = Sample(
            second=round(time.monotonic() - begun, 1),
            running=stats["running"],
            waiting=stats["waiting"],
            step_ms=round(engine["step_ms"], 3),
            tokens_per_second=round(stats["generated_tokens_per_second"], 1),
            resident_mb=_resident_mb(engine["pid"]),
            gpu_mb=await asyncio.to_thread(_gpu_mb),
        )
        soak.samples.append(sample)
        report(json.dumps(asdict(sample) | {"outcomes": dict(soak.outcomes)}))


async def _stats(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/stats") as response:
        return await response.json()


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:  # the engine is on another machine
        return 0.0
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return round(int(line.split()[1]) / 1024, 1)


def _gpu_mb() -> float:
    try:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    except FileNotFoundError:  # no GPU here
        return 0.0
