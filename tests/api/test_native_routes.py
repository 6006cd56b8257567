"""The native routes beside /v1/chat/completions: replies and streams byte for byte, prompts, and errors."""

import re

import pytest

from inference.text.tokenizer import get_tokenizer
from tests.api import wire

GREEDY = {"temperature": 0, "max_tokens": 6, "stop_tokens": []}
FIM = {"prefix": ["The", "A"], "suffix": ["fox", "cat", "without a partner"]}
BATCH = {"contents": ["The fox", "你好"]}
QUESTION = {"messages": [{"role": "user", "content": "Why?"}]}

# path, body, the patterns of a reply and of a stream
ROUTES = [
    (
        "/v1/batch/completions",
        BATCH,
        wire.reply(2, reply_id=b"rwkv7-fast-batch"),
        wire.single_stream(2),
    ),
    ("/v2/chat/completions", BATCH, wire.reply(2), wire.stream(2)),
    ("/v3/chat/completions", QUESTION, wire.reply(1, reply_id=b"rwkv7-batch-v3"), wire.stream(1)),
    ("/FIM/v1/batch-FIM", FIM, wire.reply(2, object_name=b"FIM.completion"), wire.stream(2)),
]
PATHS = [path for path, *_ in ROUTES] + ["/big_batch/completions"]


@pytest.mark.parametrize(("path", "body", "reply", "stream"), ROUTES, ids=[path for path, *_ in ROUTES])
@pytest.mark.parametrize("slash", ["", "/"])
def test_replies_and_streams(api, path, body, reply, stream, slash):
    body = body | GREEDY
    answer = api.post(path + slash, body)
    assert re.fullmatch(reply, answer.body), answer.body
    streamed = api.post(path + slash, body | {"stream": True, "chunk_size": 2})
    assert streamed.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert re.fullmatch(stream, streamed.body), streamed.body
    assert joined(streamed.frames) == {
        choice["index"]: choice["message"]["content"] for choice in answer.json["choices"]
    }


@pytest.mark.parametrize("stream", [False, True])
def test_the_big_batch_always_streams(api, stream):
    answer = api.post("/big_batch/completions", BATCH | GREEDY | {"stream": stream})
    assert re.fullmatch(wire.stream(2), answer.body)


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/v1/batch/completions", {"contents": ["The fox"]}, "The fox"),
        ("/v2/chat/completions", {"contents": ["The fox"], "pad_zero": False}, "The fox"),
        ("/v2/chat/completions", {"contents": ["The fox"]}, [0, *get_tokenizer().encode("The fox")]),
        ("/v3/chat/completions", QUESTION, "User: Why?\n\nAssistant: <think>\n</think>"),
        ("/v3/chat/completions", QUESTION | {"enable_think": True}, "User: Why?\n\nAssistant: <think"),
        (
            "/v3/chat/completions",
            {"messages": [{"role": "system", "content": "Be brief."}, *QUESTION["messages"], *QUESTION["messages"]]},
            "User: Why?\n\nAssistant: <think>\n</think>",
        ),
        (
            "/v3/chat/completions",
            {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]},
            "User: Be brief.\n\nAssistant: <think>\n</think>",
        ),
        ("/v3/chat/completions", {"contents": ["One", "Two"]}, "User: One\n\nAssistant: <think>\n</think>"),
        ("/FIM/v1/batch-FIM", {"prefix": ["The "], "suffix": [" fox"]}, "✿prefix✿✿suffix✿ fox✿middle✿The "),
        ("/big_batch/completions", {"contents": ["The fox"]}, "The fox"),
        ("/big_batch/completions", {"contents": ["The fox"], "temperature": -1}, "The fox"),
    ],
)
def test_prompts(api, path, body, prompt):
    """The greedy text is that of the same prompt on /v1/completions."""
    plain = api.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 6}).reply
    assert len(plain["choices"]) == 1
    assert joined(api.post(path, GREEDY | body | {"stream": True}).frames) == {0: plain["choices"][0]["text"]}


@pytest.mark.parametrize("path", [path for path, *_ in ROUTES])
def test_every_choice_has_its_own_end(api, path):
    """A token with a great bias is drawn at once: here a stop, there one of as many as are allowed."""
    body = (QUESTION | BATCH | FIM) | GREEDY | {"logit_bias": {"45": 100}}
    ended = api.post(path, body | {"stop_tokens": [0, ",", "no such text"]}).reply["choices"]
    assert {choice["finish_reason"] for choice in ended} == {"stop"}
    full = api.post(path, body | {"stop_tokens": ["no such text"]}).reply["choices"]
    assert {(choice["message"]["content"], choice["finish_reason"]) for choice in full} == {(",,,,,,", "length")}


def test_big_batch_draws_differ_by_seed_and_choice(api):
    body = {"contents": ["The fox"] * 4, "max_tokens": 8, "temperature": 1.0, "stop_tokens": []}
    first, again, other = (
        joined(api.post("/big_batch/completions", body | {"seed": seed}).frames) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first.values())) == 4


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Empty prompts list"),
        ({"contents": [], "prefix": [], "messages": []}, "Empty prompts list"),
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1"),
        ({"max_tokens": 10**9}, "max_tokens: expected at most 65536, got 1000000000"),
        ({"stop_tokens": [0.5]}, "stop_tokens[0]: expected an integer or a string, got a number"),
        ({"top_p": "x"}, "top_p: expected a number or null, got a string"),
        (["list"], "body: expected an object, got a list"),
    ],
)
def test_errors_are_strings(api, path, body, message):
    if isinstance(body, dict) and "Empty" not in message:
        body = QUESTION | BATCH | FIM | body
    answer = api.post(path, body)
    assert (answer.status, answer.json) == (400, {"error": message})


@pytest.mark.parametrize("path", [path for path in PATHS if "v3" not in path])
def test_too_many_prompts(api, path):
    prompts = ["a"] * 1025
    body = {"contents": prompts, "prefix": prompts, "suffix": prompts}
    overflow = {"error": "bsz overflow, Max bsz=1024", "request_bsz": 1025, "max_bsz": 1024}
    stream = api.post(path, body | {"stream": True})
    assert (stream.status, stream.frames) == (200, [overflow])
    if "big_batch" not in path:  # which always streams
        answer = api.post(path, body)
        assert (answer.status, answer.json) == (400, overflow)


def test_the_big_batches_health(api):
    model = api.get("/v1/models").reply["data"][0]["id"]
    assert api.get("/healthz").body == b'{"status":"ok","model":"%b"}' % model.encode()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"text": "hello RWKV"}, 3),
        ({"text": ""}, 0),
        ({"text": "hello RWKV", "contents": ["ignored"]}, 3),
        ({"contents": ["hello", " RWKV"]}, 3),
        ({"messages": [{"role": "user", "content": "Hi"}], "think_type": "none"}, 7),
    ],
)
def test_token_counts(api, body, tokens):
    assert api.post("/v1/tokens/count", body).body == b'{"tokens":%d}' % tokens


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Missing text or messages"),
        ({"messages": [], "contents": []}, "Missing text or messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages: expected some system or user text"),
        ({"text": 1}, "text: expected a string or null, got an integer"),
    ],
)
def test_token_count_errors(api, body, message):
    answer = api.post("/v1/tokens/count", body)
    assert (answer.status, answer.json) == (400, {"error": message})


def joined(frames: list) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for frame in frames:
        for part in frame["choices"]:
            texts[part["index"]] = texts.get(part["index"], "") + part["delta"].get("content", "")
    return texts
