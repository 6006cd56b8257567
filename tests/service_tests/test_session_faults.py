"""What goes wrong in a turn: the session is as it was before, or complete after, and never between."""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
import torch

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.state_bytes import StateFormat
from inference.engine.torch_backend import TorchBackend
from inference.text.tokenizer import get_tokenizer
from tests.service import Service, wait_until
from tests.service_tests.clients import started
from tests.service_tests.conversations import GREEDY, logged_turns, query

ENDLESS = 60_000
SECONDS = 30.0
TURNS = """
    select count(*) from rwkv_sessions_turn turn
    join rwkv_sessions_session session on session.id = turn.session_id where key = '{}'
"""
STATE = """
    select blob from rwkv_sessions_snapshotdata
    join rwkv_sessions_snapshot snapshot on snapshot.id = snapshot_id
    join rwkv_sessions_session session on session.id = snapshot.session_id and session.digest = snapshot.digest
    where key = '{}'
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    settings = {"SESSION_BUSY": "refuse", "ENGINE_SLOTS": "8", "SNAPSHOT_SECONDS": "0.2"}
    with started(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), **settings) as service:
        yield service


@pytest.fixture
async def http(service: Service) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url, timeout=aiohttp.ClientTimeout(60)) as http:
        yield http


@asynccontextmanager
async def turn(http: aiohttp.ClientSession, key: str, text: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {"contents": [text], "session_id": key, **GREEDY} | more
    async with http.post("/state/chat/completions", json=body) as response:
        yield response


async def say(http: aiohttp.ClientSession, key: str, text: str, **more: Any) -> str:
    async with turn(http, key, text, **more) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]["message"]["content"]


async def answer(http: aiohttp.ClientSession, key: str, text: str) -> tuple[int, dict[str, Any]]:
    async with turn(http, key, text) as response:
        return response.status, await response.json()


async def frames(response: aiohttp.ClientResponse, count: int = 10**9) -> list[dict[str, Any]]:
    """The next `count` frames, or all before [DONE]."""
    found: list[dict[str, Any]] = []
    async for line in response.content:
        if line == b"data: [DONE]\n" or len(found) == count:
            break
        if line.strip():
            found.append(json.loads(line.removeprefix(b"data: ")))
    return found


def turns(service: Service, key: str) -> int:
    return query(service, TURNS.format(key))[0][0]


async def until_free(http: aiohttp.ClientSession, key: str, text: str) -> str:
    """A turn, as soon as the one before is over."""
    async with asyncio.timeout(SECONDS):
        while True:
            async with turn(http, key, text) as response:
                if response.status == 200:
                    return (await response.json())["choices"][0]["message"]["content"]
                assert response.status == 409, await response.text()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("first", [True, False], ids=["first-turn", "later-turn"])
async def test_a_client_that_goes_away_leaves_the_session_as_it_was(
    service: Service, http: aiohttp.ClientSession, first: bool
):
    key, other = f"left {first}", f"stayed {first}"
    if not first:
        assert await say(http, key, "One") == await say(http, other, "One")
    async with turn(http, key, "Interrupted", stream=True, max_tokens=ENDLESS) as response:
        await frames(response, 3)
        response.close()
    assert await until_free(http, key, "Two") == await say(http, other, "Two")
    assert turns(service, key) == turns(service, other)


async def test_a_turn_is_in_the_log_before_its_last_frame(service: Service, http: aiohttp.ClientSession):
    async with turn(http, "told", "One", stream=True) as response:
        async for line in response.content:
            if b'"finish_reason"' in line:
                assert turns(service, "told") == 1
                break
        else:
            raise AssertionError("there was no last frame")


async def test_a_stop_within_a_token_leaves_the_state_of_the_text_that_was_shown(
    service: Service, http: aiohttp.ClientSession, tiny_checkpoint: Path
):
    text = await say(http, "uncut", "One", max_tokens=9)
    stop = text[8:10]
    shown = await say(http, "cut", "One", max_tokens=9, stop_tokens=[stop])
    assert shown == text[: text.index(stop)]
    encode = get_tokenizer().encode
    assert encode("One" + text)[: len(encode("One" + shown))] != encode("One" + shown), "the cut is within a token"
    async with asyncio.timeout(SECONDS):
        while not (found := query(service, STATE.format("cut"))):
            await asyncio.sleep(0.05)
    backend = TorchBackend(tiny_checkpoint, slots=1)
    backend.open_slot(0, Sampling(), [], [], [])
    backend.launch(StepPlan(chunks=[Chunk(0, encode("One") + encode(shown), sample=False)]))
    expected = backend.export_state(0)
    state = StateFormat(expected).unpack(found[0][0])
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)


async def test_a_busy_session_is_refused(service: Service, http: aiohttp.ClientSession):
    async with turn(http, "busy", "One", stream=True, max_tokens=ENDLESS) as running:
        await frames(running, 1)
        answers = await asyncio.gather(*(answer(http, "busy", f"Writer {number}") for number in range(8)))
        assert answers == [(409, {"error": "session busy is busy with another request"})] * 8
        assert await say(http, "not busy", "Two")
        running.close()
    assert await until_free(http, "busy", "Three") == await say(http, "not so busy", "Three")


async def test_of_writers_that_come_at_once_exactly_those_that_find_the_session_busy_are_refused(
    service: Service, http: aiohttp.ClientSession
):
    """Once around with no turn open: who is told 200 is in the log, in some order; who is told 409 is not."""
    texts = [f"Writer {number}" for number in range(8)]
    answers = await asyncio.gather(*(answer(http, "at once", text) for text in texts))
    replies = {
        text: body["choices"][0]["message"]["content"]
        for text, (status, body) in zip(texts, answers, strict=True)
        if status == 200
    }
    refused = [body for status, body in answers if status != 200]
    assert refused == [{"error": "session at once is busy with another request"}] * (8 - len(replies))
    assert replies
    logged = logged_turns(service, "at once")
    assert sorted(logged) == sorted(replies.items())
    for text, reply in logged:
        assert await say(http, "one after another", text) == reply


@pytest.mark.parametrize("stream", [False, True])
async def test_a_database_that_refuses_fails_the_turn(service: Service, http: aiohttp.ClientSession, stream: bool):
    key, other, message = f"full {stream}", f"fine {stream}", "the database is not available: the session is as it was"
    assert await say(http, key, "One") == await say(http, other, "One")
    database = sqlite3.connect(service.var_dir / "db.sqlite3", isolation_level=None)
    database.execute(
        "create trigger refuse before insert on rwkv_sessions_turn begin select raise(abort, 'the disk is full'); end"
    )
    try:
        async with turn(http, key, "Two", stream=stream) as response:
            if stream:
                *_, last = await frames(response)
                assert last == {"error": message}
            else:
                assert (response.status, await response.json()) == (503, {"error": message})
    finally:
        database.execute("drop trigger refuse")
        database.close()
    assert await say(http, key, "Two") == await say(http, other, "Two")
    assert turns(service, key) == 2


async def test_a_turn_survives_redis_and_the_engine(service: Service, http: aiohttp.ClientSession):
    assert await say(http, "hit", "One") == await say(http, "unhurt", "One")
    expected = await say(http, "unhurt", "Two", max_tokens=150)
    async with turn(http, "hit", "Two", stream=True, max_tokens=150, chunk_size=1) as response:
        found = await frames(response, 10)
        os.kill(service.child("engine"), signal.SIGKILL)
        found += await frames(response, 20)
        with redis.Redis.from_url(service.redis_url) as connection:
            server = connection.info("server")["process_id"]
        os.kill(server, signal.SIGKILL)
        found += await frames(response)
    text = "".join(choice["delta"].get("content", "") for frame in found for choice in frame.get("choices", ()))
    assert text == expected
    service.wait_until_healthy()
    assert await until_free(http, "hit", "Three") == await say(http, "unhurt", "Three")
    assert turns(service, "hit") == 3


async def test_a_web_process_that_dies_in_a_turn_leaves_the_session_as_it_was(
    service: Service, http: aiohttp.ClientSession
):
    assert await say(http, "web", "One") == await say(http, "no web", "One")
    async with turn(http, "web", "Two", stream=True, max_tokens=ENDLESS) as response:
        await frames(response, 3)
        for_now = service.child("rwkvsite.daphne")
        os.kill(for_now, signal.SIGKILL)
        wait_until(lambda: service.child("rwkvsite.daphne") not in (None, for_now), SECONDS, "another web process")
        service.wait_until_healthy()
    async with aiohttp.ClientSession(service.url, timeout=aiohttp.ClientTimeout(60)) as again:
        assert await until_free(again, "web", "Three") == await say(again, "no web", "Three")
    assert turns(service, "web") == 2
