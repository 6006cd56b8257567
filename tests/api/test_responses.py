"""The Responses API, through the official client."""

import json

import openai
import pytest
import redis
from asgiref.sync import sync_to_async
from django.utils import timezone

from inference.api.generating.prompts import Message
from inference.api.openai import response_store
from inference.api.openai.response_objects import ResponseBody, new_response
from inference.api.openai.response_store import Conversation
from inference.models import ApiKey, StoredResponse
from inference.tasks import remove_expired

PATH = "/v1/responses"
BODY = {"model": "rwkv7", "input": "Hi", "max_output_tokens": 8, "temperature": 0}


def chat_text(api, messages, **more) -> str:
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
    return api.post("/v1/chat/completions", body).reply["choices"][0]["message"]["content"]


def test_a_response(sdk, api):
    response = sdk.responses.create(instructions="Be brief.", metadata={"a": "b"}, **BODY)
    assert response.output_text == chat_text(
        api, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    )
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 8
    assert response.usage.total_tokens == response.usage.input_tokens + 8
    assert (response.metadata, response.instructions) == ({"a": "b"}, "Be brief.")


def test_a_stream_is_the_same_response_in_events(sdk):
    whole = sdk.responses.create(**BODY)
    with sdk.responses.create(stream=True, **BODY) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {events[-1].response.output[0].id}


def test_the_clients_own_stream_helper_accepts_the_events(sdk):
    with sdk.responses.stream(model="rwkv7", input="Hi", temperature=0, extra_body={"max_output_tokens": 8}) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert snapshots[-1] == sdk.responses.create(**BODY).output_text


def test_thoughts_are_an_item_of_their_own(sdk):
    response = sdk.responses.create(reasoning={"effort": "low"}, **BODY)
    thoughts, message = response.output
    assert (thoughts.type, message.type, response.output_text) == ("reasoning", "message", "")
    assert response.usage.output_tokens_details.reasoning_tokens == 8
    with sdk.responses.create(reasoning={"effort": "low"}, stream=True, **BODY) as stream:
        deltas = [event.delta for event in stream if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == thoughts.content[0].text


def test_structured_text(sdk):
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    text = {"format": {"type": "json_schema", "name": "pair", "schema": schema, "strict": True}}
    response = sdk.responses.create(model="rwkv7", input="Hi", text=text, max_output_tokens=200)
    assert [type(value) for value in json.loads(response.output_text)] == [bool, bool]
    assert response.status == "completed"


def test_a_conversation_goes_on(sdk, api):
    first = sdk.responses.create(instructions="Only for this turn.", **BODY)
    second = sdk.responses.create(
        previous_response_id=first.id, **BODY | {"input": [{"role": "user", "content": "And?"}]}
    )
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And?"},
    ]
    assert second.output_text == chat_text(api, turns)
    third = sdk.responses.create(previous_response_id=second.id, **BODY | {"input": "So?"})
    turns += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "So?"}]
    assert third.output_text == chat_text(api, turns)
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    assert sdk.responses.create(**BODY | {"input": parts}).output_text == sdk.responses.create(**BODY).output_text


def test_what_is_stored_can_be_read_and_deleted(sdk):
    kept = sdk.responses.create(**BODY)
    assert sdk.responses.retrieve(kept.id).output_text == kept.output_text
    sdk.responses.delete(kept.id)
    for method in (sdk.responses.retrieve, sdk.responses.delete):
        with pytest.raises(openai.NotFoundError):
            method(kept.id)
    unkept = sdk.responses.create(store=False, **BODY)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(unkept.id)
    for previous in (kept.id, unkept.id):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(previous_response_id=previous, **BODY)
        assert caught.value.param == "previous_response_id"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "image_generation_call"}]}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "user", "content": 4}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "objekt"}}}}, "text.format"),
        ({"input": ""}, "input"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"max_output_tokens": None, "max_tokens": 10**9}, "max_tokens"),
        ({"top_p": 1.5}, "top_p"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata[...]"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
    ],
)
def test_bad_values_are_refused_by_name(api, more, param):
    answer = api.post(PATH, BODY | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert answer.json["error"]["message"].startswith(f"{param}")


async def test_a_response_belongs_to_its_caller(client, remote):
    """Another key's response is not there, whoever knows its id."""
    mine, my_secret = await sync_to_async(ApiKey.objects.issue)(name="mine")
    _, other_secret = await sync_to_async(ApiKey.objects.issue)(name="other")
    response = new_response(ResponseBody(), "a-model")
    await response_store.save(f"key-{mine.pk}", Conversation(response, [Message("user", "Hi")]))
    path = f"{PATH}/{response.id}"
    for method in (remote.get, remote.delete):
        assert (await method(path, headers={"authorization": f"Bearer {other_secret}"})).status_code == 404
    found = await remote.get(path, headers={"authorization": f"Bearer {my_secret}"})
    assert json.loads(found.content)["id"] == response.id


async def test_a_response_outlives_redis_and_goes_when_its_time_is_over(client, redis_url):
    kept, old = new_response(ResponseBody(), "a-model"), new_response(ResponseBody(), "a-model")
    for response in (kept, old):
        await response_store.save("loopback", Conversation(response, [Message("user", "NUL: \0")]))
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    assert (await response_store.load("loopback", kept.id)).messages == [Message("user", "NUL: \0")]
    await StoredResponse.objects.filter(key=old.id).aupdate(expires_at=timezone.now())
    statuses = [(await client.get(f"{PATH}/{response.id}")).status_code for response in (kept, old)]
    assert statuses == [200, 404]
    assert (await client.delete(f"{PATH}/{old.id}")).status_code == 404
    await sync_to_async(remove_expired)()
    assert [stored.key async for stored in StoredResponse.objects.all()] == [kept.id]
