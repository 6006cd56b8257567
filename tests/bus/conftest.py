"""Worker processes on the counting model, and a client to them."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from inference.bus.client import BusClient
from inference.bus.status import read_engines

ROOT = Path(__file__).parents[2]


@pytest.fixture
def connection(redis_url):
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def start_worker(redis_url, connection):
    workers: list[subprocess.Popen] = []

    def start(
        slots: int = 8, step_seconds: float = 0.002, model: str = "counting", available: Sequence[str] = ()
    ) -> subprocess.Popen:
        options = [redis_url, str(slots), str(step_seconds), model, *available]
        command = [sys.executable, "-m", "tests.bus.counting_worker", *options]
        worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        workers.append(worker)
        until(lambda: (worker.pid, "ready") in [(engine.pid, engine.state) for engine in read_engines(connection)])
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.communicate()


@pytest.fixture
async def client(redis_url) -> AsyncIterator[BusClient]:
    client = BusClient(redis_url, max_queue=1000, grace_seconds=20)
    yield client
    await client.close()


@contextmanager
def busy(connection: redis.Redis) -> Iterator[None]:
    """Redis answers nobody within the block, for up to a second; behind it, it has done what it was asked meanwhile."""
    pool = connection.connection_pool
    own = pool.get_connection()
    own.send_command("EVAL", "for i = 1, 1e8 do end", 0)
    try:
        yield
    finally:
        own.read_response()
        pool.release(own)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
