"""The example requests in the documents of the older servers, sent as they stand.

They are not part of this project, so the tests need the folder of them; the routes' own tests do not.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rwkvsite.env import BASE_DIR
from tests.api import wire
from tests.api.conftest import Answer, Api
from tests.service import Service

FOLDER = BASE_DIR.parent / "shared" / "data" / "requests"
PASSWORD = "rwkv7_7.2b"
BEARER_PLACEHOLDER = "your-password-if-set"

REPLY_IDS = {"/v3/chat/completions": b"rwkv7-batch-v3"}
OBJECTS = {"/FIM/v1/batch-FIM": b"FIM.completion"}

REQUESTS = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}

pytestmark = pytest.mark.skipif(not REQUESTS, reason=f"the documented requests are not in {FOLDER}")


@pytest.fixture(scope="module")
def guarded_api(tmp_path_factory: pytest.TempPathFactory, ending_checkpoint: Path) -> Iterator[Api]:
    """A service with the documents' password."""
    service = Service(
        tmp_path_factory.mktemp("var"), MODEL=str(ending_checkpoint), API_PASSWORD=PASSWORD, OPEN_ROUTES="true"
    )
    try:
        yield Api(service.wait_until_healthy().url)
    finally:
        service.stop()


@pytest.mark.parametrize("name", REQUESTS)
def test_verbatim(ending_api, name):
    request = REQUESTS[name]
    check(request, send(ending_api, request))


@pytest.mark.parametrize("name", [name for name in REQUESTS if "translate" not in name])
def test_with_and_without_streaming(ending_api, name):
    request = REQUESTS[name]
    body = request["body"] | {"stream": not request["body"].get("stream", False)}
    check(request | {"body": body}, send(ending_api, request | {"body": body}))


@pytest.mark.parametrize("name", REQUESTS)
def test_with_a_password_set(guarded_api, name):
    request = REQUESTS[name]
    answer = send(guarded_api, request)
    if request["path"] == "/translate/v1/batch-translate" or request["body"].get("password") == PASSWORD:
        check(request, answer)
        return
    assert answer.status == 401  # it names no password, or a placeholder
    assert answer.json["error"]["message"] == "Unauthorized: invalid or missing password"
    named = request | {"headers": {"Authorization": f"Bearer {PASSWORD}"}}
    check(named, send(guarded_api, named))


@pytest.mark.parametrize("name", [name for name in REQUESTS if "password" in REQUESTS[name]["body"]])
def test_with_a_wrong_password(guarded_api, name):
    request = REQUESTS[name]
    answer = send(guarded_api, request | {"body": request["body"] | {"password": "wrong"}})
    assert (answer.status, answer.body) == (401, b'{"error":"Unauthorized: invalid or missing password"}')


def send(api: Api, request: dict[str, Any]) -> Answer:
    headers = {"Content_Type": "application/json", **request["headers"]}
    return api.send(request["method"], request["path"], request["body"], **headers)


def check(request: dict[str, Any], answer: Answer) -> None:
    """Compare an answer with what the documents say of the route, byte by byte on the native ones."""
    path, body = request["path"], request["body"]
    if path == "/state/delete":
        assert answer.status in (200, 404), answer.body  # whether or not the session was there
        assert answer.json["status"] == ("success" if answer.status == 200 else "not_found")
        return
    assert answer.status == 200, answer.body
    streams = body.get("stream") or path == "/big_batch/completions"
    if path == "/translate/v1/batch-translate":
        codes = [body["source_lang"].encode()] * len(body["text_list"])
        assert re.fullmatch(wire.translations(codes), answer.body)
    elif path == "/state/status":
        assert answer.json["status"] == "success"
        assert len(answer.json["sessions"]) == answer.json["total_sessions"]
    elif path == "/v1/completions":
        (check_text_stream if streams else check_text)(answer)
    elif "messages" in body and not path.startswith("/v3"):
        (check_chat_stream if streams else check_chat)(answer)
    else:
        choices = len(body.get("contents") or body.get("prefix") or ["one question"])
        pattern = wire.reply(
            choices,
            reply_id=REPLY_IDS.get(path, b"rwkv7-batch"),
            object_name=OBJECTS.get(path, b"chat.completion"),
        )
        assert re.fullmatch(wire.stream(choices) if streams else pattern, answer.body), answer.body


def check_chat(answer: Answer) -> None:
    reply = answer.json
    assert re.fullmatch("chatcmpl-[0-9a-f]{24}", reply["id"])
    assert reply["object"] == "chat.completion"
    (choice,) = reply["choices"]
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] in ("stop", "length")
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def check_chat_stream(answer: Answer) -> None:
    first, *middle, last = answer.frames
    assert {(frame["id"], frame["object"], frame["created"]) for frame in answer.frames} == {
        (first["id"], "chat.completion.chunk", first["created"])
    }
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert all(choice["finish_reason"] is None for frame in (first, *middle) for choice in frame["choices"])
    assert last["choices"][0]["finish_reason"] in ("stop", "length")


def check_text(answer: Answer) -> None:
    (choice,) = answer.json["choices"]
    assert answer.json["object"] == "text_completion"
    assert isinstance(choice["text"], str)
    assert choice["finish_reason"] in ("stop", "length")


def check_text_stream(answer: Answer) -> None:
    *_, last = answer.frames
    assert all(isinstance(frame["choices"][0]["text"], str) for frame in answer.frames)
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
