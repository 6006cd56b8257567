"""Sessions on a service whose levels are far too small for them."""

import asyncio
import os
import random
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.service import Service, wait_until
from tests.service_tests.clients import started
from tests.service_tests.conversations import expected_texts, query, talking

SESSIONS, TURNS = 200, 5
KILLED_SESSIONS = 24
POSTGRES = os.environ.get("TEST_POSTGRES_URL", "")
KILLS = int(os.environ.get("TEST_SESSION_KILLS", "2"))
SMALL = {"STATE_L1_SLOTS": "4", "STATE_L2_ENTRIES": "8", "ENGINE_SLOTS": "16", "SNAPSHOT_SECONDS": "1"}
NOTHING_LOST = """
    select count(*), min(turns), max(turns) from
    (select count(*) as turns from rwkv_sessions_turn group by session_id) as counted
"""
STALE_SNAPSHOTS = """
    select count(*) from rwkv_sessions_session session
    left join rwkv_sessions_snapshot snapshot on snapshot.session_id = session.id and snapshot.digest = session.digest
    where snapshot.id is null
"""


@pytest.fixture(
    params=["", pytest.param(POSTGRES, marks=pytest.mark.skipif(not POSTGRES, reason="TEST_POSTGRES_URL is not set"))],
    ids=["sqlite", "postgres"],
)
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Empty for SQLite, or a database of its own, made and dropped beside the one that the URL names."""
    if not request.param:
        yield ""
        return
    import psycopg
    from psycopg import sql

    name = f"rwkv_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield urlunsplit(urlsplit(POSTGRES)._replace(path=f"/{name}"))
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def service(tmp_path: Path, tiny_checkpoint: Path, database_url: str) -> Iterator[Service]:
    with started(tmp_path, MODEL=str(tiny_checkpoint), DATABASE_URL=database_url, **SMALL) as service:
        yield service


@pytest.mark.timeout(300)
async def test_every_session_says_what_it_would_without_eviction(
    service: Service, tiny_checkpoint: Path, database_url: str
):
    expected = expected_texts(tiny_checkpoint, SESSIONS, TURNS)
    async with talking(service) as talk:
        assert await talk.play(SESSIONS, TURNS) == expected
        status = await talk.status()
        assert status["total_sessions"] == SESSIONS
        async with asyncio.timeout(10):  # the heartbeat tells of the levels once a second
            while not (status["l1_cache_count"] and status["l2_cache_count"] and status["database_count"]):
                await asyncio.sleep(0.1)
                status = await talk.status()
        assert status["l1_cache_count"] <= 4 and status["l2_cache_count"] <= 8
        (engine,) = (await talk.stats())["engines"]
        print(f"{engine['state_hits']} states were in L1 or L2, {engine['state_loads']} came from the database")
        assert engine["state_hits"]
        assert engine["state_loads"] > SESSIONS
    assert query(service, NOTHING_LOST, database_url) == [(SESSIONS, TURNS, TURNS)]


@pytest.mark.timeout(120 + 40 * KILLS)  # an engine that keeps dying is started after growing pauses
async def test_nothing_is_lost_or_doubled_when_the_engine_is_killed(
    service: Service, tiny_checkpoint: Path, database_url: str
):
    rounds = KILLS + 1
    expected = expected_texts(tiny_checkpoint, KILLED_SESSIONS, rounds)
    chance = random.Random(0)
    async with talking(service) as talk:
        for turn in range(rounds):
            playing = asyncio.create_task(talk.play(KILLED_SESSIONS, 1, first=turn))
            if turn < KILLS:
                await asyncio.sleep(chance.uniform(0.0, 0.5))  # a random moment of the round
                await asyncio.to_thread(kill_engine, service)
            assert await playing == [texts[turn : turn + 1] for texts in expected]
    assert query(service, NOTHING_LOST, database_url) == [(KILLED_SESSIONS, rounds, rounds)]


def kill_engine(service: Service) -> None:
    """Kill the engine, once there is one, and wait for the next."""
    wait_until(lambda: service.child("engine"), 60, "an engine runs")
    os.kill(service.child("engine"), signal.SIGKILL)
    service.wait_until_healthy()


@pytest.mark.timeout(300)
async def test_sigterm_saves_every_state_and_the_next_start_serves_them(
    tmp_path: Path, tiny_checkpoint: Path, database_url: str
):
    sessions = 24
    expected = expected_texts(tiny_checkpoint, sessions, 3)
    settings = {"MODEL": str(tiny_checkpoint), "DATABASE_URL": database_url, **SMALL}
    settings |= {"SNAPSHOT_SECONDS": "1000", "STATE_L2_ENTRIES": "1000"}
    with started(tmp_path, **settings) as service:
        async with talking(service) as talk:
            first = await talk.play(sessions, 2)
            running = [asyncio.create_task(talk.turn(n, 2, max_tokens=60_000)) for n in range(sessions)]
            async with asyncio.timeout(20):
                while (await talk.stats())["running"] < 8:
                    await asyncio.sleep(0.05)
            assert await asyncio.to_thread(service.stop, signal.SIGTERM) == 0
            ended = await asyncio.gather(*running, return_exceptions=True)
        assert first == [texts[:2] for texts in expected]
        assert all(isinstance(answer, Exception) for answer in ended), "no turn was told to be finished"
        assert query(service, NOTHING_LOST, database_url) == [(sessions, 2, 2)]
        assert query(service, STALE_SNAPSHOTS, database_url) == [(0,)]
    with started(tmp_path, **settings) as service:
        async with talking(service) as talk:
            assert await talk.play(sessions, 1, first=2) == [texts[2:] for texts in expected]
            async with asyncio.timeout(10):  # the heartbeat tells of it once a second
                while (await talk.stats())["engines"][0]["state_loads"] < sessions:
                    await asyncio.sleep(0.1)
