"""POST /v1/chat/completions with `contents`: the native batch, byte for byte."""

import re

import pytest

PATH = "/v1/chat/completions"
GREEDY = {"contents": ["The fox", "你好"], "temperature": 0, "max_tokens": 8, "stop_tokens": []}
# The body that the older servers' documents show, but for its two long prompts.
DOCUMENTED = {
    "contents": ["English: That night.\n\nChinese:", "English: It rained.\n\nChinese:"],
    "max_tokens": 12,
    "stop_tokens": [0, 261, 24281],
    "temperature": 0.8,
    "top_k": 50,
    "top_p": 0.6,
    "alpha_presence": 1.0,
    "alpha_frequency": 0.1,
    "alpha_decay": 0.99,
    "password": "rwkv7_7.2b",
}
STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*"'
CONTENT = rb'\{"index": \d, "delta": \{"content": (?!"")' + STRING + rb"\}\}"
HEAD = (
    rb'data: \{"id": '
    + STRING
    + rb', "object": "chat\.completion\.chunk", "created": \d+, "model": "rwkv7", "choices": \['
)


def test_a_reply(api):
    answer = api.post(PATH, GREEDY)
    assert re.fullmatch(
        rb'\{"id":"rwkv7-batch","object":"chat\.completion","created":\d+,"model":"rwkv7","choices":\['
        rb'\{"index":0,"message":\{"role":"assistant","content":' + STRING + rb'\},"finish_reason":"length"\},'
        rb'\{"index":1,"message":\{"role":"assistant","content":' + STRING + rb'\},"finish_reason":"length"\}\],'
        rb'"usage":\{"prompt_tokens":\d+,"completion_tokens":16,"total_tokens":\d+,'
        rb'"prompt_tokens_details":\{"cached_tokens":0\}\}\}',
        answer.body,
    )


def test_a_prompt_is_taken_as_it_stands(api):
    plain = api.post("/v1/completions", {"prompt": "The fox", "temperature": 0, "max_tokens": 8}).reply
    assert api.post(PATH, GREEDY).reply["choices"][0]["message"]["content"] == plain["choices"][0]["text"]


def test_the_frames_of_a_stream(api):
    answer = api.post(PATH, GREEDY | {"stream": True})
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    content = HEAD + CONTENT + rb"(?:, " + CONTENT + rb")*\]\}\n\n"
    end = HEAD + (
        rb'\{"index": 0, "delta": \{\}, "finish_reason": "length"\}, '
        rb'\{"index": 1, "delta": \{\}, "finish_reason": "length"\}\]\}\n\n'
    )
    assert re.fullmatch(rb"(?:" + content + rb")+" + end + rb"data: \[DONE\]\n\n", answer.body)


def test_a_stream_is_the_reply_in_parts(api):
    whole = api.post(PATH, GREEDY).reply["choices"]
    frames = api.post(PATH, GREEDY | {"stream": True}).frames
    for choice in whole:
        parts = [part for frame in frames for part in frame["choices"] if part["index"] == choice["index"]]
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]


def test_usage_in_a_stream_only_when_asked_for(api):
    frames = api.post(PATH, GREEDY | {"stream": True, "stream_options": {"include_usage": True}}).frames
    assert frames[-1]["choices"] == []
    assert frames[-1]["usage"]["completion_tokens"] == 16
    assert all("usage" not in frame for frame in frames[:-1])


def test_chunk_size_gathers_tokens(api):
    one, all_at_once = (
        len(api.post(PATH, GREEDY | {"contents": ["The fox"], "stream": True, "chunk_size": size}).frames)
        for size in (1, 100)
    )
    assert all_at_once == 2  # the text, and the end
    assert one > all_at_once


@pytest.mark.parametrize("stream", [False, True])
def test_the_documented_body(api, stream):
    answer = api.post(PATH, DOCUMENTED | {"stream": stream, "model": "my label"})
    assert answer.status == 200
    replies = answer.frames if stream else [answer.json]
    assert all(reply["model"] == "my label" for reply in replies)  # a label: echoed, never looked up
    assert all(choice["index"] in (0, 1) for reply in replies for choice in reply["choices"])


@pytest.mark.parametrize("stops", [[0, 45], [","], [45, "no such text"]])
def test_stops_are_ids_and_texts(api, stops):
    body = {"contents": ["a"], "temperature": 0, "max_tokens": 8, "logit_bias": {"45": 100}}
    (choice,) = api.post(PATH, body | {"stop_tokens": stops}).reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"contents": []}, "Empty prompts list"),
        ({"contents": "a"}, "contents: expected a list or null, got a string"),
        ({"contents": [1]}, "contents[0]: expected a string, got an integer"),
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1"),
        ({"temperature": float("nan")}, "temperature: expected a number >= 0.0"),
        ({"top_p": float("nan")}, "top_p: expected a finite number"),
        ({"chunk_size": 0}, "chunk_size: expected an integer >= 1"),
        ({"stream": True, "contents": []}, "Empty prompts list"),
    ],
)
def test_errors_are_strings(api, more, message):
    answer = api.post(PATH, GREEDY | more)
    assert (answer.status, answer.json) == (400, {"error": message})
