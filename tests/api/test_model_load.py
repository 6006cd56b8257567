"""POST /v1/model/load on a service with several checkpoints."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import redis

from inference.api.edge import worker_key
from inference.api.rows import engines as rows_engines
from inference.api.service import model_load
from inference.bus import keys
from inference.bus.messages import EngineStatus, LoadModel, ModelInfo
from tests.api.test_auth import bearer, issue, post
from tests.api.test_server_control import opened
from tests.service import wait_until

pytestmark = pytest.mark.timeout(300)

BODY = {"contents": ["The fox"], "temperature": 0, "max_tokens": 200, "stop_tokens": []}


@pytest.fixture
def first_again(two_webs):
    """Leaves the service as it was."""
    yield two_webs
    assert two_webs.post("/v1/model/load", {"model": "first"}).status == 200


def pause_one(api) -> str:
    """The id of a paused request."""
    with opened(api, "/v1/batch/completions", BODY | {"max_tokens": 20_000, "chunk_size": 1}) as stream:
        api.post("/v1/server/pause", {"request_id": stream.id})
        return stream.read_to_end().id


def loaded(api) -> str | None:
    models = api.get("/v1/models")
    return models.json["loaded"] if models.status == 200 else None


def test_what_can_be_loaded_is_listed(two_webs):
    models = two_webs.get("/v1/models").reply
    assert models["loaded"] == "first"
    assert models["available"] == ["broken", "first", "second"]
    assert [model["id"] for model in models["data"]] == ["first"]


def test_the_loaded_model_is_ready_at_once(two_webs):
    assert two_webs.post("/v1/model/load", {"model": "first"}).body == b'{"object":"model","id":"first","loaded":true}'


def test_running_requests_are_finished_first(first_again):
    api = first_again
    paused = pause_one(api)
    with ThreadPoolExecutor() as pool:
        long = BODY | {"max_tokens": 1000}  # so that all run at one time
        running = [pool.submit(api.post, "/v1/batch/completions", long) for _ in range(3)]
        wait_until(lambda: len(api.get("/v1/server/status").reply["active_requests"]) == 3, 30, "all are running")
        answer = api.post("/v1/model/load", {"model": "second"})
        assert answer.body == b'{"object":"model","id":"second","loaded":true}'
        for request in running:
            (choice,) = request.result().reply["choices"]
            assert choice["finish_reason"] == "length"
    assert loaded(api) == "second"
    assert api.post("/v1/batch/completions", BODY | {"max_tokens": 2}).reply["model"] == "second"
    assert api.post("/v1/completions", {"model": "first", "prompt": "a"}).status == 404

    refused = api.post("/v1/server/resume", {"request_id": paused})
    assert (refused.status, refused.json) == (404, {"error": "model: 'first' is not loaded here; see /v1/models"})
    api.post("/v1/model/load", {"model": "first"})
    resumed = api.post("/v1/server/resume", {"request_id": paused, "max_tokens": 2})
    assert resumed.frames[-1]["choices"][0]["finish_reason"] == "length"


def test_a_checkpoint_that_cannot_be_loaded_leaves_the_old_model(two_webs):
    answer = two_webs.post("/v1/model/load", {"model": "broken"})
    assert (answer.status, answer.json) == (500, {"error": "the model could not be loaded: broken"})
    assert loaded(two_webs) == "first"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'model' is required"),
        ({"model": "other"}, "unknown model: other"),
        ({"model": "../first"}, "unknown model: ../first"),
        ({"model": 1}, "model: expected a string or null, got an integer"),
    ],
)
def test_errors(two_webs, body, message):
    answer = two_webs.post("/v1/model/load", body)
    assert (answer.status, answer.json) == (400, {"error": message})


def beat(connection: redis.Redis, name: str, pid: int, model: str, state: str = "ready", failed: str = "") -> None:
    """The heartbeat of an engine process."""
    info = ModelInfo(id=model, layers=1, width=64, vocab=65536, parameters=1, fingerprint="0" * 64)
    status = EngineStatus(engine=name, state=state, host="h", pid=pid, started=pid, updated=0.0, model=info)
    status.available, status.failed_model = ["new", "old"], failed
    connection.sadd(keys.ENGINES, name)
    connection.set(keys.engine(name), msgspec.msgpack.encode(status))


async def told(connection: redis.Redis) -> LoadModel:
    """What the engines are told to load."""
    while not (entries := connection.xrange(keys.CANCEL)):
        await asyncio.sleep(0.01)
    return msgspec.msgpack.decode(entries[0][1][b"load"], type=LoadModel)


async def test_a_key_may_not_change_everyones_model(remote, change_settings, redis_url):
    """It rules over its own requests alone; who has the shared password rules over all, and sweeps may load models."""
    change_settings(api_password="password")
    _, secret = await issue()
    with redis.Redis.from_url(redis_url) as connection:
        beat(connection, "engine 0", 0, "old")
    for body in ({"model": "new"}, {"model": "old"}, {}):
        assert (await post(remote, "/v1/model/load", body, headers=bearer(secret))).status_code == 403
    for may in ("password", worker_key.issue()):
        assert (await post(remote, "/v1/model/load", {"model": "old"}, headers=bearer(may))).status_code == 200
    of_a_key = bearer(worker_key.issue("key-1"))
    assert (await post(remote, "/v1/model/load", {"model": "old"}, headers=of_a_key)).status_code == 403


@pytest.mark.parametrize(
    ("then", "failed", "status"),
    [("new", "", 200), ("old", "new", 500), ("newer", "", 500)],
    ids=["loaded", "cannot be loaded", "another one was wanted since"],
)
async def test_the_answer_waits_for_every_engine_that_was_told(client, redis_url, monkeypatch, then, failed, status):
    looks: list[set[str]] = []  # of the view at the engines

    async def live_engines() -> list[EngineStatus]:
        engines = await rows_engines.live_engines()
        looks.append({engine.engine for engine in engines})
        return engines

    monkeypatch.setattr(model_load, "live_engines", live_engines)
    monkeypatch.setattr(model_load, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(model_load, "STATUS_SECONDS", 0.0)
    with redis.Redis.from_url(redis_url) as connection:
        for number, model in enumerate(["old", "old", "new"]):
            beat(connection, f"engine {number}", number, model)
        body = {"model": "new"}
        running = asyncio.create_task(client.post("/v1/model/load", body, content_type="application/json"))
        async with asyncio.timeout(30):
            assert (await told(connection)).engines == ["engine 0", "engine 1"]  # the third one has it
            connection.delete(keys.engine("engine 0"))
            beat(connection, "engine 0 again", 0, "new")
            while sum("engine 0 again" in look for look in looks) < 3 and not running.done():
                await asyncio.sleep(0.01)
            assert not running.done(), "one of the two is not ready"
            connection.delete(keys.engine("engine 1"))
            beat(connection, "engine 1 again", 1, then, failed=failed)
            assert (await running).status_code == status
