"""Several engines: a session stays with the one that has its state, and moves when that one dies."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rwkvsite.env import BASE_DIR
from tests.service import Service
from tests.service_tests.clients import started
from tests.service_tests.conversations import Talk, expected_texts, talking

SESSIONS, TURNS = 16, 4
SECONDS = 60.0
# States stay where they are made: whatever an engine has to load, another one had.
SETTINGS = {"ENGINE_SLOTS": "2", "STATE_L1_SLOTS": "4", "STATE_L2_ENTRIES": "1000", "SNAPSHOT_SECONDS": "1000"}


@contextmanager
def another_engine(service: Service, checkpoint: Path) -> Iterator[subprocess.Popen]:
    own = {"VAR_DIR": str(service.var_dir), "REDIS_URL": service.redis_url, "MODEL": str(checkpoint)}
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "OMP_NUM_THREADS": "1", **SETTINGS, **own}
    with (service.var_dir / "engine.log").open("wb") as log:
        command = [sys.executable, str(BASE_DIR / "manage.py"), "engine"]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def engines(talk: Talk, count: int) -> list[dict]:
    """The heartbeats, once so many engines are ready and idle and have beaten after that."""
    found: list[dict] = []
    async with asyncio.timeout(SECONDS):
        while True:
            before, found = found, [e for e in (await talk.stats())["engines"] if e["state"] == "ready"]
            idle = not any(engine["running"] or engine["waiting"] for engine in found)
            if len(found) == count and idle and _later(found, before):
                return found
            await asyncio.sleep(1.1)  # longer than a heartbeat


def _later(found: list[dict], before: list[dict]) -> bool:
    times = {engine["engine"]: engine["updated"] for engine in before}
    return all(engine["updated"] > times.get(engine["engine"], engine["updated"]) for engine in found)


@pytest.fixture
def service(tmp_path: Path, tiny_checkpoint: Path) -> Iterator[Service]:
    with started(tmp_path, MODEL=str(tiny_checkpoint), **SETTINGS) as service:
        yield service


async def test_a_session_stays_with_its_engine_and_moves_when_that_dies(service: Service, tiny_checkpoint: Path):
    expected = expected_texts(tiny_checkpoint, SESSIONS, TURNS)
    with another_engine(service, tiny_checkpoint) as other:
        async with talking(service) as talk:
            await engines(talk, 2)
            assert await talk.play(SESSIONS, 2) == [texts[:2] for texts in expected]
            both = await engines(talk, 2)
            assert all(engine["generated_tokens"] for engine in both), "both took some of the sessions"
            assert sum(engine["state_hits"] for engine in both) == SESSIONS
            assert sum(engine["state_loads"] for engine in both) == 0

            playing = asyncio.create_task(talk.play(SESSIONS, 1, first=2))
            await asyncio.sleep(0.05)  # any moment of the round will do
            os.kill(other.pid, signal.SIGKILL)
            assert await playing == [texts[2:3] for texts in expected]
            assert await talk.play(SESSIONS, 1, first=3) == [texts[3:] for texts in expected]
            (left,) = await engines(talk, 1)
            assert 0 < left["state_loads"] < SESSIONS, "those of the dead engine were rebuilt, and once"
