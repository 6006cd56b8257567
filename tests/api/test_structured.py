"""Structured output on the whole service: the random model says nothing sensible, but in the form it is asked for."""

import json
import re

import jsonschema
import pydantic
import pytest

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
TEXT = {"type": "string", "maxLength": 6}
SCHEMAS = {
    "record": {
        "type": "object",
        "properties": {
            "name": TEXT,
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "weight": {"enum": [0.5, -1e3, None]},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
        },
        "required": ["name", "age", "weight", "tags"],
        "additionalProperties": False,
    },
    "union": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"ok": {"const": True}},
                "required": ["ok"],
                "additionalProperties": False,
            },
            {"type": "object", "properties": {"why": TEXT}, "required": ["why"], "additionalProperties": False},
        ]
    },
    "reference": {
        "$defs": {
            "point": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": -99}, "maxItems": 2}
        },
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": ["boolean", "null"]}},
}


def by_schema(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_fifty_random_texts_are_valid(api, name):
    body = {"messages": HI, "response_format": by_schema(SCHEMAS[name]), "n": 50, "max_tokens": 1000, "seed": 7}
    choices = api.post(CHAT, body).reply["choices"]
    assert len(choices) == 50
    for choice in choices:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMAS[name])
        assert choice["finish_reason"] == "stop"
    assert len({choice["message"]["content"] for choice in choices}) > 1


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


def test_the_sdk_parses_into_a_model(sdk):
    reply = sdk.chat.completions.parse(model="rwkv7", messages=HI, response_format=Person, max_tokens=300)
    assert isinstance(reply.choices[0].message.parsed, Person)


def test_a_json_object(api):
    body = {"messages": HI, "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 400}
    choice = api.post(CHAT, body).reply["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert choice["message"]["content"].startswith("{")


def test_a_stream_has_the_same_text(api):
    body = {"messages": HI, "response_format": by_schema(SCHEMAS["record"]), "seed": 5, "max_tokens": 500}
    whole = api.post(CHAT, body).reply["choices"][0]
    frames = api.post(CHAT, body | {"stream": True}).frames
    parts = [frame["choices"][0] for frame in frames]
    assert "".join(part["delta"].get("content", "") for part in parts) == whole["message"]["content"]
    assert parts[-1]["finish_reason"] == whole["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("more", "pattern"),
    [
        ({"guided_regex": "\\d{3}/[a-f]{1,5}\n\\\\"}, "\\d{3}/[a-f]{1,5}\n\\\\"),
        ({"guided_choice": ['say "yes"', "no\n", "ähm"]}, r'say "yes"|no\n|ähm'),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"guided_json": '{"const": 5}'}, "5"),
        ({"structured_outputs": {"regex": "[xy]{5}"}}, "[xy]{5}"),
        ({"structured_outputs": {"choice": ["one"]}}, "one"),
        ({"structured_outputs": {"json": {"enum": [1, 2]}}}, "1|2"),
        ({"response_format": {"type": "json_schema", "schema": {"const": "x"}}}, '"x"'),
    ],
)
@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_the_other_ways_to_constrain(api, path, more, pattern):
    subject = {"messages": HI} if path == CHAT else {"prompt": "Hi"}
    choice = api.post(path, subject | more | {"max_tokens": 400}).reply["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert re.fullmatch(pattern, text)
    assert choice["finish_reason"] == "stop"


def test_greedy_rows_follow_a_grammar_beside_free_ones(api):
    free = api.post(PLAIN, {"prompt": "Hi", "temperature": 0, "max_tokens": 8}).reply["choices"][0]["text"]
    bound = api.post(PLAIN, {"prompt": ["Hi", "Ho"], "temperature": 0, "guided_regex": "[0-9]{8}"}).reply["choices"]
    assert all(re.fullmatch("[0-9]{8}", choice["text"]) for choice in bound)
    assert free == api.post(PLAIN, {"prompt": "Hi", "temperature": 0, "max_tokens": 8}).reply["choices"][0]["text"]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
            "response_format",
        ),
        ({"response_format": by_schema({"type": "object", "properties": {"a": {"$ref": "#/x"}}})}, "response_format"),
        ({"response_format": by_schema([1])}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"type": "object", "not": {}}}, "guided_json"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(api, path, more, param):
    answer = api.post(path, {"messages": HI, "prompt": "Hi"} | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
