"""Whose requests a caller may see, stop, pause and resume: a key its own, the shared password everyone's."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.test_auth import bearer, issue, post
from tests.bus.conftest import connection, start_worker  # noqa: F401

ENDLESS = {"contents": ["a"], "temperature": 0, "max_tokens": 60_000, "stop_tokens": [], "chunk_size": 1}


class Caller:
    """A client with a secret of its own."""

    def __init__(self, client, secret: str) -> None:
        self._client = client
        self._headers = bearer(secret)

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        return await post(self._client, path, body, headers={**self._headers, **headers})

    async def status(self) -> Any:
        return (await self._client.get("/v1/server/status", headers=self._headers)).json()

    async def stream(self, path: str = "/v1/batch/completions", body: Any = None, **headers: str) -> "Stream":
        answer = await self.post(path, body or ENDLESS | {"stream": True}, **headers)
        assert answer.status_code == 200, answer.content
        return await Stream(aiter(answer.streaming_content)).next()


class Stream:
    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames
        self.last: Any = None

    async def next(self) -> "Stream":
        self.last = json.loads((await anext(self._frames)).removeprefix(b"data: "))
        return self

    async def rest(self) -> list[Any]:
        return [json.loads(frame.removeprefix(b"data: ")) async for frame in self._frames if b"[DONE]" not in frame]

    @property
    def id(self) -> str:
        return self.last["id"]


@pytest.fixture
async def callers(client, remote, change_settings, start_worker) -> list[Caller]:  # noqa: F811
    """Two keys and the shared password, and an engine that counts."""
    change_settings(api_password="password")
    start_worker()
    secrets = [(await issue())[1], (await issue())[1], "password"]
    return [Caller(remote, secret) for secret in secrets]


def ids(requests: list[Any]) -> list[str]:
    return sorted(request["id"] for request in requests)


async def test_a_key_sees_and_stops_its_own_requests_alone(callers):
    mine, other, operator = callers
    one, two = await mine.stream(), await other.stream()
    for caller, expected in [(mine, [one.id]), (other, [two.id]), (operator, sorted([one.id, two.id]))]:
        status = await caller.status()
        assert ids(status["active_requests"]) == expected
        assert status["active_request"]["id"] in expected

    stopped = await other.post("/v1/server/stop", {"request_id": one.id})
    assert stopped.json() == {"ok": True, "stopped": False, "active_request": None}
    for body in ({"request_id": one.id}, {"request_id": "nobody"}):
        assert (await other.post("/v1/server/pause", body)).status_code == 404
    assert (await other.post("/v1/server/stop", {})).json()["stopped"]
    assert (await two.rest())[-1]["choices"][0]["finish_reason"] == "stop"
    assert (await other.post("/v1/server/pause", {})).status_code == 404
    assert (await other.status())["last_request"]["id"] == two.id
    assert (await mine.status())["last_request"] is None

    assert ids((await mine.status())["active_requests"]) == [one.id]
    assert (await operator.post("/v1/server/stop", {"request_id": one.id})).json()["stopped"]
    assert (await one.rest())[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_paused_request_is_its_keys_alone(callers):
    mine, other, operator = callers
    streams = [await caller.stream(**{"x-request-id": "the-same-id"}) for caller in (mine, other)]
    for caller, stream in zip((mine, other), streams, strict=True):
        assert (await caller.post("/v1/server/pause", {})).json()["request_id"] == "the-same-id"
        await stream.rest()
    third = await mine.stream()
    await mine.post("/v1/server/pause", {"request_id": third.id})
    await third.rest()
    for caller, expected in [
        (mine, ["the-same-id", third.id]),
        (other, ["the-same-id"]),
        (operator, ["the-same-id", "the-same-id", third.id]),
    ]:
        assert ids((await caller.status())["paused_requests"]) == sorted(expected)

    assert (await other.post("/v1/server/resume", {"request_id": third.id})).status_code == 404
    resumed = await operator.stream("/v1/server/resume", {"request_id": third.id})
    assert ids((await mine.status())["active_requests"]) == [third.id]  # whoever resumed it
    await mine.post("/v1/server/stop", {})
    await resumed.rest()
    for caller in (mine, other):
        resumed = await caller.stream("/v1/server/resume", {"request_id": "the-same-id", "max_tokens": 2})
        assert (await resumed.rest())[-1]["choices"][0]["finish_reason"] == "length"
    assert (await operator.status())["paused_requests"] == []


async def test_a_resume_that_fails_leaves_the_request_paused(callers):
    mine, _, _ = callers
    stream = await mine.stream()
    await mine.post("/v1/server/pause", {"request_id": stream.id})
    await stream.rest()
    before = (await mine.status())["paused_requests"]
    assert (await mine.post("/v1/server/resume", {"request_id": stream.id, "max_tokens": 2**40})).status_code == 400
    assert (await mine.status())["paused_requests"] == before
    resumed = await mine.stream("/v1/server/resume", {"request_id": stream.id, "max_tokens": 2})
    assert (await resumed.rest())[-1]["choices"][0]["finish_reason"] == "length"
