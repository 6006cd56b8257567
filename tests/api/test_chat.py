"""POST /v1/chat/completions with messages, and /openai/v1/chat/completions, on the whole service."""

import asyncio
import time

import openai
import pytest

from tests.api.conftest import Api

PATHS = ["/v1/chat/completions", "/v1/chat/completions/", "/openai/v1/chat/completions"]
HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"model": "rwkv7", "messages": HI, "temperature": 0}


def test_a_reply(sdk):
    reply = sdk.chat.completions.create(max_tokens=7, **GREEDY)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    (choice,) = reply.choices
    assert (choice.index, choice.message.role, choice.finish_reason) == (0, "assistant", "length")
    assert reply.usage.completion_tokens == 7
    # "User: Hi\n\nAssistant: <think>\n</think>\n", the same text as a plain prompt, goes on the same way
    plain = sdk.completions.create(
        model="rwkv7", prompt="User: Hi\n\nAssistant: <think>\n</think>\n", max_tokens=7, temperature=0
    )
    assert choice.message.content == plain.choices[0].text
    assert reply.usage.prompt_tokens == plain.usage.prompt_tokens


def test_a_stream_with_usage(sdk):
    whole = sdk.chat.completions.create(max_tokens=9, **GREEDY).choices[0].message.content
    with sdk.chat.completions.create(
        max_tokens=9, stream=True, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        first, *chunks, finish, usage = list(stream)
    assert first.choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole
    assert all(chunk.choices[0].finish_reason is None and chunk.usage is None for chunk in chunks)
    assert finish.choices[0].finish_reason == "length"
    assert finish.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage.completion_tokens == 9
    assert {chunk.id for chunk in chunks} == {first.id, usage.id}


@pytest.mark.parametrize("path", PATHS)
def test_the_frames(api, path):
    answer = api.post(path, GREEDY | {"max_tokens": 3, "ignore_eos": True, "stream": True, "chunk_size": 100})
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    role, content, finish = answer.body.decode().removesuffix("data: [DONE]\n\n").removesuffix("\n\n").split("\n\n")
    head = role.partition(',"choices"')[0]
    assert role == (
        head
        + ',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}'
    )
    assert content.startswith(head + ',"choices":[{"index":0,"delta":{"content":"')
    assert content.endswith('"},"logprobs":null,"finish_reason":null}]}')
    assert finish == (
        head + ',"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}]}'
    )


def test_an_event_stream_may_be_asked_for_by_accept(api):
    body = GREEDY | {"max_tokens": 1, "stream": True}
    assert api.post(PATHS[0], body, Accept="text/event-stream").status == 200


def test_several_choices_each_have_a_beginning_and_an_end(api):
    body = {"messages": HI, "n": 3, "seed": 4, "max_tokens": 6}
    whole = api.post(PATHS[0], body).reply
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    frames = api.post(PATHS[0], body | {"stream": True}).frames
    for choice in whole["choices"]:
        deltas = [part for frame in frames for part in frame["choices"] if part["index"] == choice["index"]]
        assert [part["delta"].get("role") for part in deltas].count("assistant") == 1
        assert deltas[-1]["finish_reason"] == choice["finish_reason"]
        assert "".join(part["delta"].get("content", "") for part in deltas) == choice["message"]["content"]


def test_logprobs(sdk):
    reply = sdk.chat.completions.create(max_tokens=10, logprobs=True, top_logprobs=2, **GREEDY)
    (choice,) = reply.choices
    assert len(choice.logprobs.content) == 10
    assert b"".join(bytes(entry.bytes) for entry in choice.logprobs.content).decode(errors="replace") == (
        choice.message.content
    )
    for entry in choice.logprobs.content:
        best, second = entry.top_logprobs
        assert (best.token, best.bytes, best.logprob) == (entry.token, entry.bytes, entry.logprob)
        assert second.logprob <= best.logprob


def test_the_newer_name_of_the_token_limit_wins(sdk):
    reply = sdk.chat.completions.create(max_tokens=50, max_completion_tokens=2, **GREEDY)
    assert reply.usage.completion_tokens == 2


def test_messages_in_parts_and_contents_behind_them(api):
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    body = {"temperature": 0, "max_tokens": 5}
    same = [
        body | {"messages": HI},
        body | {"messages": parts},
        body | {"messages": HI, "response_format": {"type": "text"}, "tools": [], "user": "me", "unknown": 1},
    ]
    texts = {api.post(PATHS[0], one).reply["choices"][0]["message"]["content"] for one in same}
    assert len(texts) == 1
    for more in ({}, {"messages": []}):
        openai_contents = api.post(PATHS[2], body | {"contents": ["Hi"]} | more).reply
        assert {openai_contents["choices"][0]["message"]["content"]} == texts


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_bad_values_are_refused_by_name(api, path, more, param):
    answer = api.post(path, {"messages": HI} | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert answer.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe"])
def test_what_is_no_json_object_is_refused(api, body):
    assert api.post(PATHS[0], body).status == 400


async def until(service, running: int) -> None:
    """Wait for the engine's own count of rows, which its heartbeat carries."""
    end = time.monotonic() + 20
    while (found := (await asyncio.to_thread(Api(service.url).get, "/stats")).json["running"]) != running:
        assert time.monotonic() < end, f"{found} rows run, expected {running}"
        await asyncio.sleep(0.05)


async def test_a_client_that_goes_frees_its_slot(service):
    """Both while it streams, and while it waits for a whole reply."""
    body = {"model": "rwkv7", "messages": HI, "max_tokens": 60_000, "extra_body": {"ignore_eos": True}}
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="-", max_retries=0) as client:
        stream = await client.chat.completions.create(stream=True, **body)
        await anext(aiter(stream))
        waiting = asyncio.create_task(client.chat.completions.create(**body))
        await until(service, running=2)
        await stream.close()
        await until(service, running=1)
        waiting.cancel()
        await until(service, running=0)
