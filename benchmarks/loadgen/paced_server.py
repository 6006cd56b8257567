"""A server whose streams tick at a known pace, each event with the time it was written: what a client costs, measured.

`python -m benchmarks.loadgen.paced_server` prints its port and serves until its standard input is closed. Any request
with a JSON body {"events": how many, "interval": seconds between two} is answered by such a stream. It knows just
enough HTTP for that, since it shares the machine with the client that is measured.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 20  # the streams of one pace take turns within an interval, so that their events do not come in bursts
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "text": " token", "finish_reason": null}], "written": %.6f}\n\n'
DONE = b"data: [DONE]\n\n"


class Pace(msgspec.Struct):
    events: int
    interval: float


@contextmanager
def running_paced_server() -> Iterator[str]:
    """The base URL of one in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loadgen.paced_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


class Wheel:
    """Writes the next event of the streams of one slot, then of those of the next: once around in one interval."""

    def __init__(self, interval: float) -> None:
        self._slots: list[dict[asyncio.Transport, int]] = [{} for _ in range(SLOTS)]
        self._joined = 0
        self._turn = 0
        self._tick = interval / SLOTS
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self._loop.call_soon(self._write)

    def add(self, transport: asyncio.Transport, events: int) -> None:
        self._slots[self._joined % SLOTS][transport] = events
        self._joined += 1

    def drop(self, transport: asyncio.Transport) -> None:
        for slot in self._slots:
            slot.pop(transport, None)

    def _write(self) -> None:
        slot = self._slots[self._turn % SLOTS]
        for transport, left in list(slot.items()):
            transport.write(_chunk(EVENT % time.monotonic()))
            slot[transport] = left - 1
            if left == 1:
                del slot[transport]
                transport.write(_chunk(DONE) + LAST_CHUNK)
        self._turn += 1
        self._due += self._tick
        self._loop.call_at(self._due, self._write)


class Connection(asyncio.Protocol):
    def __init__(self, wheels: dict[float, Wheel]) -> None:
        self._wheels = wheels
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        _, _, body = self._received.partition(b"\r\n\r\n")
        if not body.endswith(b"}"):
            return
        self._received = b""
        pace = msgspec.json.decode(body, type=Pace)
        self._transport.write(HEAD)
        if pace.interval not in self._wheels:
            self._wheels[pace.interval] = Wheel(pace.interval)
        self._wheels[pace.interval].add(self._transport, pace.events)

    def connection_lost(self, exc: Exception | None) -> None:
        for wheel in self._wheels.values():
            wheel.drop(self._transport)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    wheels: dict[float, Wheel] = {}
    server = await loop.create_server(lambda: Connection(wheels), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
