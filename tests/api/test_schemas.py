import json

import pytest

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import json_schema
from inference.api.edge.schemas import Payload
from inference.api.native.batch import BatchBody
from inference.api.openai.chat import ChatBody
from inference.api.openai.completions import CompletionBody


def read(schema, **fields):
    return Payload(json.dumps(fields).encode()).read(schema)


def test_lax_values_unknown_fields_and_nulls_are_taken():
    body = read(BatchBody, contents=["a"], temperature="0.8", stream=1, max_tokens=None, noise=1.5, pad_zero=True)
    assert (body.temperature, body.stream, body.max_tokens) == (0.8, True, None)


def test_stop_tokens_keep_integers_and_strings_apart():
    assert read(BatchBody, stop_tokens=[0, "0", "User"]).stop_tokens == [0, "0", "User"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": float("nan")}, "temperature", "temperature: expected a number >= 0.0"),
        ({"temperature": float("inf")}, "temperature", "temperature: expected a finite number"),
        ({"temperature": -1}, "temperature", "temperature: expected a number >= 0.0"),
        ({"temperature": "hot"}, "temperature", "temperature: expected a number or null, got a string"),
        ({"alpha_presence": float("nan")}, "alpha_presence", "alpha_presence: expected a number >= -1000000.0"),
        ({"alpha_decay": -0.5}, "alpha_decay", "alpha_decay: expected a number >= 0.0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: expected an integer >= 1"),
        ({"max_tokens": -3}, "max_tokens", "max_tokens: expected an integer >= 1"),
        ({"max_tokens": 2.5}, "max_tokens", "max_tokens: expected an integer or null, got a number"),
        ({"top_p": 1.5}, "top_p", "top_p: expected a number <= 1.0"),
        ({"n": 0}, "n", "n: expected an integer >= 1"),
        ({"stop": [1.5]}, "stop[0]", "stop[0]: expected a string, got a number"),
        ({"stop_tokens": [70000]}, "stop_tokens[0]", "stop_tokens[0]: expected an integer <= 65535"),
        (
            {"messages": [{"role": 3}]},
            "messages[0].role",
            "messages[0].role: expected a string or null, got an integer",
        ),
        ({"tools": [{}]}, "tools[0].function", "tools[0].function: missing"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]", "logit_bias[...]: expected a number <= 100.0"),
        ({"stream_options": {"include_usage": "x"}}, "stream_options.include_usage", None),
    ],
)
def test_a_bad_value_is_refused_by_the_fields_name(fields, param, message):
    with pytest.raises(InvalidRequest) as refused:
        read(ChatBody, **fields)
    assert refused.value.param == param
    assert message is None or refused.value.message == message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a":"\\ud800"}', b"[" * 100_000, b'{"a": 1' + b"0" * 5000])
def test_what_is_no_json_is_refused(body):
    with pytest.raises(InvalidRequest, match=r"^Invalid JSON: "):
        Payload(body).read(BatchBody)


@pytest.mark.parametrize("body", [b"[]", b"3", b'"x"', b"null"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(InvalidRequest, match=r"^body: expected an object"):
        Payload(body).read(BatchBody)


def test_a_completion_may_ask_for_no_new_tokens():
    assert read(CompletionBody, max_tokens=0).max_tokens == 0


def test_a_schema_is_written_out_without_references():
    schema = json_schema(ChatBody)
    assert "$ref" not in json.dumps(schema)
    assert "role" in json.dumps(schema["properties"]["messages"])
