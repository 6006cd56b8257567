"""Errors that need no engine: their status, their form, and what they do not reveal."""

import asyncio

import msgspec
import pytest
from redis import asyncio as aioredis

from inference.api.service import health
from inference.bus import keys
from inference.bus.messages import Generate, RowOutput, StepReply

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


async def post(client, path, body, /, **options):
    return await client.post(path, body, content_type="application/json", **options)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/openai/v1/chat/completions/"])
async def test_without_an_engine_the_service_is_unavailable(client, path):
    answer = await post(client, path, CHAT | {"prompt": "a"})
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["error"]["type"] == "server_error"


async def test_without_redis_the_service_is_unavailable(client, change_settings, tmp_path):
    change_settings(redis_url=f"unix://{tmp_path}/nothing.sock")
    assert (await client.get("/health")).status_code == 503
    assert (await client.get("/v1/models")).status_code == 503
    assert (await client.get("/")).json()["models"] == []
    answer = await post(client, "/v1/completions", {"prompt": "a"})
    assert (answer.status_code, int(answer.headers["Retry-After"]) >= 1) == (503, True)


async def test_native_errors_are_strings(client):
    answer = await post(client, "/v1/chat/completions", {"contents": ["a"]})
    assert answer.status_code == 503
    assert isinstance(answer.json()["error"], str)


async def test_a_full_queue_refuses_at_once(client, deaf_engine, change_settings):
    change_settings(max_queue=2)
    answer = await post(client, "/v1/completions", {"prompt": ["a", "b", "c"], "stream": True})
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answer.headers["Retry-After"]) >= 1
    assert (await post(client, "/v1/chat/completions", {"contents": ["a", "b", "c"]})).status_code == 429


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("the engine failed while running this request", 500),
        ("the session's state cannot be loaded now", 503),
        ("the model was unloaded", 503),
    ],
)
async def test_only_what_may_pass_is_asked_for_again(client, deaf_engine, redis_url, reason, status):
    """A request that breaks the engine would break it again: clients come back after 503 for as long as it says so."""
    running = asyncio.create_task(post(client, "/v1/completions", {"prompt": "a"}))
    async with aioredis.Redis.from_url(redis_url) as connection, asyncio.timeout(30):
        while not (entries := await connection.xrange(keys.requests("deaf"))):
            assert not running.done(), running.result().content
            await asyncio.sleep(0.01)
        request = msgspec.msgpack.decode(entries[0][1][b"m"], type=Generate)
        reply = StepReply("deaf", [RowOutput(request.row, 0, finish="error", error=reason)])
        await connection.xadd(keys.replies(request.web), {"m": msgspec.msgpack.encode(reply)})
        answer = await running
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, reason)
    assert ("Retry-After" in answer.headers) == (status == 503)


async def test_a_body_beyond_the_limit_is_refused(client, change_settings):
    change_settings(max_body_bytes=1024)
    answer = await post(client, "/v1/completions", {"prompt": "a" * 2000})
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the request body is larger than 1024 bytes"


async def test_too_many_choices_are_refused(client, deaf_engine, change_settings):
    change_settings(max_rows=4)
    for body, param in (
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": ["a", "b"], "n": 3}, "prompt"),
        ({"prompt": "a", "n": 5}, "n"),
        ({"prompt": "a", "best_of": 5}, "best_of"),
    ):
        answer = await post(client, "/v1/completions", body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await post(client, "/v1/chat/completions", CHAT | {"n": 5})).json()["error"]["param"] == "n"
    native = await post(client, "/v1/chat/completions", {"contents": ["a"] * 5})
    assert native.status_code == 400
    overflow = b'{"error":"bsz overflow, Max bsz=4","request_bsz":5,"max_bsz":4}'
    assert native.content == overflow
    for path in ("/v1/chat/completions", "/v1/batch/completions", "/v2/chat/completions", "/big_batch/completions"):
        stream = await post(client, path, {"contents": ["a"] * 5, "stream": True})
        assert (stream.status_code, stream.headers["Content-Type"][:17]) == (200, "text/event-stream")
        frames = [frame async for frame in stream.streaming_content]
        assert frames == [b"data: " + overflow + b"\n\n", b"data: [DONE]\n\n"]


async def test_an_empty_list_of_messages_is_none(client, deaf_engine):
    """Clients of the Python server may fill in every field that it has."""
    for messages in ([], None):
        answer = await post(client, "/v1/chat/completions", {"messages": messages, "contents": []})
        assert (answer.status_code, answer.content) == (400, b'{"error":"Empty prompts list"}')
    assert (await post(client, "/v1/chat/completions", {"messages": []})).json()["error"]["param"] == "messages"
    answer = await post(client, "/openai/v1/chat/completions", {"messages": [], "contents": []})
    assert answer.json()["error"]["param"] == "messages"


async def test_too_long_a_prompt_is_refused(client, deaf_engine, change_settings):
    change_settings(max_prompt_tokens=3, max_new_tokens=10)
    for path, body in [
        ("/v1/completions", {"prompt": "a b c d e"}),
        ("/v1/completions", {"prompt": [1, 2, 3, 4]}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 11}),
        ("/v1/chat/completions", CHAT),
    ]:
        answer = await post(client, path, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_an_unknown_model_is_not_found(client, deaf_engine):
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = await post(client, path, CHAT | {"prompt": "a", "model": "gpt-5"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert answer.json()["error"]["param"] == "model"
    assert (await client.get("/v1/models/gpt-5")).status_code == 404
    assert (await client.get("/v1/models/deaf")).json()["id"] == "deaf"


async def test_an_unknown_route_and_a_wrong_method(client, remote):
    answer = await remote.get("/v1/nothing")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    assert (await post(client, "/v1/nothing", {})).status_code == 404
    wrong = await client.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST, OPTIONS")


async def test_a_bug_is_a_plain_500_and_is_logged(client, monkeypatch, caplog):
    def broken(engines):
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(health, "summarise_health", broken)
    answer = await client.get("/health")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal server error"
    assert "a secret detail" in caplog.text


async def test_cross_origin_requests_need_the_operators_leave(client, remote, change_settings):
    origin = {"origin": "https://app.example"}
    assert "Access-Control-Allow-Origin" not in (await client.get("/v1/models", headers=origin)).headers
    change_settings(cors_origins=("https://app.example",), api_password="secret")
    preflight = await remote.options("/v1/completions", headers=origin)
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
    asked = "authorization,x-stainless-os,x-rwkv-session-id"  # as the official SDK's in a browser
    for wanted, allowed in [
        (asked, asked),
        ("a" * 1001, "Authorization, Content-Type, X-Request-ID"),
        ("a: b", "Authorization, Content-Type, X-Request-ID"),
    ]:
        headers = {**origin, "access-control-request-headers": wanted}
        preflight = await remote.options("/v1/completions", headers=headers)
        assert preflight.headers["Access-Control-Allow-Headers"] == allowed
    other = await client.options("/v1/completions", headers={"origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in other.headers
    refused = await post(client, "/v1/completions", {}, headers=origin)  # the page may read why
    assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, "https://app.example")


async def test_a_preflight_from_this_machine_is_answered_where_there_are_no_secrets(client, change_settings):
    change_settings(cors_origins=("*",))
    preflight = await client.options("/v1/completions", headers={"origin": "https://app.example"})
    assert (preflight.status_code, preflight.headers["Access-Control-Allow-Origin"]) == (204, "*")


async def test_the_request_id_comes_back(client):
    assert (await client.get("/health", headers={"x-request-id": "my-1"})).headers["X-Request-Id"] == "my-1"
    assert len((await client.get("/health", headers={"x-request-id": "no good"})).headers["X-Request-Id"]) >= 16
