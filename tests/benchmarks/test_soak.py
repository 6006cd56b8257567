"""What a soak tells of a service, also of one that does not do well."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks import soak
from benchmarks.soak import COMPLETE, LEFT, Soak, run_soak

STATS = {
    "running": 0,
    "waiting": 0,
    "generated_tokens_per_second": 5.0,
    "engines": [{"step_ms": 2.0, "pid": 0, "memory_free": 3 * 2**20, "memory_total": 10 * 2**20}],
}
GUARD_SECONDS = 60.0  # for what takes a moment, and would take for ever

Handler = Callable[[web.Request], Any]


async def complete(request: web.Request) -> web.Response:
    return web.Response(text='data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n')


async def fall_silent(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    await asyncio.Event().wait()
    return response


async def tell_stats(request: web.Request) -> web.Response:
    return web.json_response(STATS)


@asynccontextmanager
async def serving(
    answer: Handler = complete, stats: Handler = tell_stats, delete: Handler = complete
) -> AsyncIterator[str]:
    app = web.Application()
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, answer)
    app.router.add_post("/state/delete", delete)
    app.router.add_get("/stats", stats)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr(soak, "POLL_SECONDS", 0.01)


async def soaked(url: str, seconds: float = 0.5) -> Soak:
    async with asyncio.timeout(GUARD_SECONDS):
        return await run_soak(url, "", clients=4, seconds=seconds, report=lambda line: None)


async def test_a_service_that_does_well() -> None:
    async with serving() as url:
        found = await soaked(url)
    assert found.outcomes[COMPLETE] > 0 and set(found.outcomes) <= {COMPLETE, LEFT}
    assert found.idle_at_end and found.missed_samples == 0
    summary = found.summary()
    assert summary["first_third"]["tokens_per_second"] == summary["last_third"]["tokens_per_second"] == 5.0
    assert summary["first_third"]["device_mb"] == summary["last_third"]["device_mb"] == 7.0


async def test_conversations_go_on_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "TURN_SHARE", 1.0)
    turns, deleted = Counter[str](), Counter[str]()

    async def turn(request: web.Request) -> web.Response:
        turns[(await request.json())["session_id"]] += 1
        return await complete(request)

    async def delete(request: web.Request) -> web.Response:
        deleted[(await request.json())["session_id"]] += 1
        return web.json_response({})

    async with serving(turn, delete=delete) as url:
        await soaked(url, seconds=2.0)
    assert max(turns.values()) > 1
    assert deleted.keys() >= turns.keys() and set(deleted.values()) == {1} and len(deleted) == 4


async def test_a_stream_that_falls_silent_has_not_been_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(soak, "LEAVING_SHARE", 0.0)
    async with serving(fall_silent) as url:
        found = await soaked(url)
    assert set(found.outcomes) == {"SocketTimeoutError"}


async def test_a_service_that_is_not_there_is_told_at_once() -> None:
    async with serving() as url:
        pass
    with pytest.raises(aiohttp.ClientError):
        await soaked(url, seconds=3600)


async def test_samples_go_on_behind_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "LEAVING_SHARE", 0.0)
    asked, sampled = 0, asyncio.Event()

    async def now_and_then(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 2:
            return web.json_response({"error": "away"}, status=503)
        if asked > 4:
            sampled.set()
        return web.json_response(STATS if asked > 3 else {**STATS, "engines": []})

    async def complete_then(request: web.Request) -> web.Response:
        await sampled.wait()
        return await complete(request)

    async with serving(complete_then, now_and_then) as url:
        found = await soaked(url)
    assert found.missed_samples == 2
    assert found.samples


async def test_the_figures_of_a_service_that_went_away_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "IDLE_SECONDS", 0.1)
    asked = 0

    async def only_at_first(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response(STATS) if asked == 1 else web.json_response({}, status=503)

    async with serving(stats=only_at_first) as url:
        found = await soaked(url)
    assert found.outcomes[COMPLETE] > 0
    assert not found.idle_at_end


def test_a_soak_without_a_sample_has_a_summary() -> None:
    summary = Soak(1.0).summary()
    assert (summary["first_third"], summary["last_third"]) == (None, None)
