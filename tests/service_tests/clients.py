"""Clients of a running service: raw server-sent events over real sockets, and what the service says of itself."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import redis

from inference.bus import keys
from tests.service import Service

ENDLESS = 60_000  # tokens that nobody waits for: such a row ends because it was cancelled
SECONDS = 30.0  # the longest wait for something that takes milliseconds on an idle machine


class Stream:
    """One answer as it comes: `text`, `finish_reason` and `error` so far, and `done` behind its [DONE]."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.text = ""
        self.finish_reason: str | None = None
        self.error: dict[str, Any] | None = None
        self.done = False

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """The frames before [DONE]. Ends early, without `done`, when the connection does."""
        async for line in self.response.content:
            if not line.strip():
                continue
            assert not self.done, f"{line!r} came behind [DONE]"
            if line == b"data: [DONE]\n":
                self.done = True
                continue
            frame = json.loads(line.removeprefix(b"data: "))
            self.error = frame.get("error")
            for choice in frame.get("choices", ()):
                self.text += choice["text"]
                self.finish_reason = choice["finish_reason"]
            yield frame

    async def read(self, count: int) -> None:
        """Read the next `count` frames."""
        async for _frame in self.frames():
            count -= 1
            if not count:
                return
        raise AssertionError(f"the stream ended {count} frames too early: {self.error}")

    async def read_to_end(self) -> None:
        async for _frame in self.frames():
            pass


class Client:
    """Asks one service. Greedy unless the request says otherwise."""

    def __init__(self, service: Service, session: aiohttp.ClientSession) -> None:
        self._url = service.url
        self._session = session

    @asynccontextmanager
    async def stream(self, prompt: str, tokens: int, **fields: Any) -> AsyncIterator[Stream]:
        """A stream, whose connection is cut at the end of the block."""
        body = _completion(prompt, tokens, stream=True, **fields)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            try:
                yield Stream(response)
            finally:
                response.close()

    async def text(self, prompt: str, tokens: int, **fields: Any) -> str:
        """The whole text, without streaming."""
        body = _completion(prompt, tokens, **fields)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return (await response.json())["choices"][0]["text"]

    async def wait_until_idle(self) -> None:
        """Wait until /stats says that nothing runs or waits."""
        async with asyncio.timeout(SECONDS):
            while True:
                status, stats = await self.get("/stats")
                if status == 200 and stats["running"] == stats["waiting"] == 0:
                    return
                await asyncio.sleep(0.05)

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self._session.get(f"{self._url}{path}") as response:
            return response.status, await response.json()


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(100)) as session:
        yield Client(service, session)


@contextmanager
def started(var_dir: Path, **environment: str) -> Iterator[Service]:
    """A service of one's own."""
    service = Service(var_dir, **environment)
    try:
        yield service.wait_until_healthy()
    finally:
        if service.process.poll() is None:
            service.stop()


class EngineView:
    """What the engine holds, read from Redis at once (its heartbeat tells /stats once a second)."""

    def __init__(self, service: Service, model: str) -> None:
        self._redis = redis.Redis.from_url(service.redis_url)
        self._stream = keys.requests(model)

    def close(self) -> None:
        self._redis.close()

    @property
    def held_rows(self) -> int:
        """Rows that the engine took and has neither finished nor given up."""
        return self._redis.xpending(self._stream, keys.GROUP)["pending"]

    @property
    def open_rows(self) -> int:
        """Rows that wait for the engine or are held by it."""
        return self._redis.xlen(self._stream)

    async def wait_until_free(self) -> float:
        """Wait until the engine holds nothing. Returns the milliseconds that took."""
        begun = time.perf_counter()
        while self.held_rows:
            assert time.perf_counter() - begun < SECONDS, f"{self.held_rows} rows are still held"
            await asyncio.sleep(0.001)  # also lets the client's own connections close
        return 1000 * (time.perf_counter() - begun)


def _completion(prompt: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
