"""Who is admitted, on the real views with a real database and a real Redis, but without an engine."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection as database
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from inference.api.edge import auth, throttles
from inference.api.rows.engines import bus
from inference.bus import keys
from inference.models import ApiKey
from tests.api.conftest import ClientAt
from tests.bus.conftest import busy, connection, start_worker  # noqa: F401

NATIVE_401 = b'{"error":"Unauthorized: invalid or missing password"}'


async def status(client, /, **options) -> int:
    return (await client.get("/v1/models", **options)).status_code


async def post(client, path, body, /, **options):
    return await client.post(path, body, content_type="application/json", **options)


@sync_to_async
def issue(**limits) -> tuple[ApiKey, str]:
    return ApiKey.objects.issue(name="app", **limits)


@sync_to_async
def execute(sql: str) -> None:
    with database.cursor() as cursor:
        cursor.execute(sql)


async def until_admitted(client, secret) -> None:
    """A place is given back in a task of its own, soon after its request ended."""
    end = time.monotonic() + 10
    while await status(client, headers=bearer(secret)) != 200:
        assert time.monotonic() < end, "the place was not given back"
        await asyncio.sleep(0.01)


@contextmanager
def capture_queries() -> Iterator[list[str]]:
    """The SQL that any thread runs."""
    queries: list[str] = []
    original = CursorWrapper.execute

    def execute(self, sql, params=None):
        queries.append(sql)
        return original(self, sql, params)

    CursorWrapper.execute = execute
    try:
        yield queries
    finally:
        CursorWrapper.execute = original


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_without_any_secret_only_this_machine_is_served(client, remote):
    assert await status(client) == 200
    assert await status(ClientAt("::1")) == 200
    assert await status(ClientAt("::ffff:127.0.0.1")) == 200
    assert await status(remote) == 401
    assert await status(client, headers={"x-forwarded-for": "203.0.113.7"}) == 401


async def test_the_shared_password_is_taken_from_the_header_or_the_body(client, remote, change_settings):
    change_settings(api_password="pässword")
    assert await status(client) == 401
    assert await status(client, headers=bearer("wrong")) == 401
    assert await status(remote, headers=bearer("pässword".encode().decode("latin-1"))) == 200
    for secret, expected in [("pässword", 503), ("wrong", 401), (5, 401), (None, 401)]:  # 503: there is no engine
        for path in ("/v1/chat/completions", "/v1/completions/", "/openai/v1/chat/completions"):
            body = {"contents": ["a"], "prompt": "a", "password": secret}
            assert (await post(remote, path, body)).status_code == expected
    both = {"contents": ["a"], "password": "pässword"}
    assert (await post(client, "/v1/chat/completions", both, headers=bearer("placeholder"))).status_code == 503


async def test_refusal_has_the_form_of_its_route(client, change_settings):
    change_settings(api_password="secret")
    native = await post(client, "/v1/chat/completions", {"contents": ["a"]})
    assert (native.status_code, native.content) == (401, NATIVE_401)
    chat = await post(client, "/v1/chat/completions", {"messages": []})
    assert chat.status_code == 401
    assert chat.json()["error"] == {
        "message": "Unauthorized: invalid or missing password",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert chat.headers["WWW-Authenticate"] == "Bearer"


async def test_the_caller_is_checked_before_the_body(client, change_settings):
    change_settings(api_password="secret")
    assert (await post(client, "/v1/completions", "{")).status_code == 401


async def test_an_issued_key_is_admitted_until_it_is_disabled_or_expires(client, remote):
    key, secret = await issue()
    assert await status(remote, headers=bearer(secret)) == 200
    assert await status(client) == 401  # with a key in the database, this machine needs one as well

    key.enabled = False
    await key.asave()
    assert await status(remote, headers=bearer(secret)) == 200  # remembered for some seconds
    auth.memory.forget()
    assert await status(remote, headers=bearer(secret)) == 401

    key.enabled, key.expires_at = True, timezone.now() - timedelta(seconds=1)
    await key.asave()
    auth.memory.forget()
    assert await status(remote, headers=bearer(secret)) == 401


class Database:
    """Answers when it is told to."""

    def __init__(self, answer: bool | Exception) -> None:
        self.asked = 0
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self._answer = answer

    def ask(self) -> bool:
        self.asked += 1
        self.is_asked.set()
        assert self.may_answer.wait(10)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def burst(memory: auth.Memory, first: Database, later: Database) -> list[bool | BaseException]:
    """What eight threads are told: one that asks `first`, and seven that come before that has answered, if need be."""
    all_there = threading.Barrier(8)

    def recall() -> bool:
        all_there.wait(10)
        return memory.recall(b"question", later.ask)

    with ThreadPoolExecutor(8) as pool:
        told = [pool.submit(memory.recall, b"question", first.ask)]
        assert first.is_asked.wait(10)
        told += [pool.submit(recall) for _ in range(7)]
        all_there.wait(10)
        assert memory.recall(b"another question", lambda: True)  # nobody waits for what he did not ask
        first.may_answer.set()
        return [future.exception() or future.result() for future in told]


def test_a_burst_asks_the_database_once() -> None:
    for _ in range(20):  # the others' threads may come late
        first, later = Database(True), Database(False)
        later.may_answer.set()
        assert burst(auth.Memory(), first, later) == [True] * 8
        assert (first.asked, later.asked) == (1, 0)


def test_all_of_a_burst_hear_of_an_error_which_is_not_remembered() -> None:
    for _ in range(20):
        error, memory = ConnectionError("away"), auth.Memory()
        later = Database(True)
        later.may_answer.set()
        told = burst(memory, Database(error), later)
        assert told[0] is error and all(one is error or one is True for one in told)
        assert memory.recall(b"question", lambda: True)


async def test_a_key_is_looked_up_once_for_many_requests(client, remote):
    _, secret = await issue()
    with capture_queries() as queries:
        for _ in range(3):
            await status(client, headers=bearer(secret))
            await status(remote, headers=bearer("wrong"))
    assert sum("inference_apikey" in query and query.startswith("SELECT") for query in queries) == 2


async def test_requests_per_minute(client):
    _, secret = await issue(requests_per_minute=2)
    _, other = await issue(requests_per_minute=2)
    assert [await status(client, headers=bearer(secret)) for _ in range(3)] == [200, 200, 429]
    assert await status(client, headers=bearer(other)) == 200
    refused = await client.get("/v1/models", headers=bearer(secret))
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60


async def test_requests_at_one_time(client, deaf_engine):
    _, secret = await issue(max_concurrent=1)
    body = {"prompt": "a", "stream": True}
    running = await post(client, "/v1/completions", body, headers=bearer(secret))
    assert running.status_code == 200
    refused = await post(client, "/v1/completions", body, headers=bearer(secret))
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")

    del running  # the client goes, before it read anything
    gc.collect()  # what a server that lost its client holds of the stream may be a cycle
    await until_admitted(client, secret)
    assert [await status(client, headers=bearer(secret)) for _ in range(3)] == [200] * 3


async def test_a_key_is_good_though_its_use_cannot_be_noted(client):
    """A database that is full can still be read."""
    _, secret = await issue()
    refuse = "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    await execute(f"CREATE TRIGGER full BEFORE UPDATE ON inference_apikey {refuse}")
    try:
        assert await status(client, headers=bearer(secret)) == 200
    finally:
        await execute("DROP TRIGGER full")


async def test_a_place_whose_answer_got_lost_is_the_same_one(client, connection, monkeypatch):  # noqa: F811
    """The client of Redis asks again by itself."""
    once = type(bus().redis).eval

    async def twice(self, *args):
        await once(self, *args)
        return await once(self, *args)

    monkeypatch.setattr(type(bus().redis), "eval", twice)
    place = await throttles.take_place(auth.Caller("app", max_concurrent=1))
    assert connection.zcard(keys.places("app")) == 1
    await place.release()
    assert connection.zcard(keys.places("app")) == 0


async def test_a_client_that_goes_while_it_is_admitted_holds_no_place(connection):  # noqa: F811
    """It goes when Redis has been asked for the place and has not answered."""
    caller = auth.Caller("app", max_concurrent=1)
    await (await throttles.take_place(caller)).release()  # so that there is a connection
    with busy(connection):
        admitting = asyncio.create_task(throttles.take_place(caller))
        for _ in range(20):  # turns of the loop, of which sending takes some
            await asyncio.sleep(0)
        admitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await admitting
    assert connection.zcard(keys.places("app")) == 0


async def test_a_stream_that_tells_its_end_has_given_its_place_back(client, start_worker):  # noqa: F811
    """The client need not wait for [DONE], which it may never read."""
    start_worker()
    _, secret = await issue(max_concurrent=1)
    for path, body in [("/v1/completions", {"prompt": "a"}), ("/v1/batch/completions", {"contents": ["a"]})]:
        more = {"max_tokens": 3, "stream": True, "temperature": 0, "stop_tokens": []}
        running = await post(client, path, body | more, headers=bearer(secret))
        assert await status(client, headers=bearer(secret)) == 429
        async for frame in running.streaming_content:
            if b'"finish_reason":"length"' in frame:
                assert await status(client, headers=bearer(secret)) == 200


async def test_a_place_that_was_held_too_long_is_not_given_back_twice(client, start_worker, monkeypatch):  # noqa: F811
    """Who holds it by then is somebody else."""
    start_worker()
    _, secret = await issue(max_concurrent=1)
    body = {"prompt": "a", "stream": True, "max_tokens": 60_000}
    monkeypatch.setattr(throttles, "PLACE_SECONDS", 0)
    late = await post(client, "/v1/completions", body | {"max_tokens": 3}, headers=bearer(secret))
    monkeypatch.setattr(throttles, "PLACE_SECONDS", 900)
    other = await post(client, "/v1/completions", body, headers=bearer(secret))
    assert other.status_code == 200
    assert [frame async for frame in late.streaming_content][-1] == b"data: [DONE]\n\n"
    assert await status(client, headers=bearer(secret)) == 429


async def test_a_stream_that_tells_its_end_has_let_go_of_its_session(client, start_worker, change_settings):  # noqa: F811
    change_settings(session_busy="refuse")
    start_worker()
    body = {"session_id": "s", "contents": ["a"], "max_tokens": 3, "temperature": 0, "stop_tokens": []}
    running = await post(client, "/state/chat/completions", body | {"stream": True})
    assert (await post(client, "/state/chat/completions", body)).status_code == 409
    async for frame in running.streaming_content:
        if b'"finish_reason": "length"' in frame:
            assert (await post(client, "/state/chat/completions", body)).status_code == 200


async def test_open_routes_need_no_key(client, remote, change_settings):
    change_settings(api_password="secret", open_routes=True)
    assert await status(remote) == 200
    assert (await remote.get("/stats")).status_code == 200
    assert (await post(remote, "/v1/completions", {"prompt": "a"})).status_code == 401
