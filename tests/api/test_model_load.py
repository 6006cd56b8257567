"""POST /v1/model/load on a service with several checkpoints."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.test_server_control import opened
from tests.service import wait_until

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
        running = [pool.submit(api.post, "/v1/batch/completions", BODY) for _ in range(3)]
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
