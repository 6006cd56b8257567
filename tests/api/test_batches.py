"""/v1/batches: jobs from end to end, with the official client."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.api.batch_input import ENDPOINT, jsonl, line
from tests.service import wait_until

SECONDS = 60.0
OPEN = ("validating", "in_progress", "finalizing", "cancelling")

Start = Callable[..., Batch]


@pytest.fixture
def start(sdk: openai.OpenAI) -> Iterator[Start]:
    """Upload an input and start a batch on it. What still runs at the end of the test is cancelled."""
    started = []

    def start(content: bytes, endpoint: str = ENDPOINT, window: str = "24h", **fields: Any) -> Batch:
        file = sdk.files.create(file=("in.jsonl", content), purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window, **fields)
        started.append(batch.id)
        return batch

    yield start
    for key in started:
        if sdk.batches.retrieve(key).status in OPEN:
            sdk.batches.cancel(key)
            finished(sdk, key)


def finished(sdk: openai.OpenAI, key: str) -> Batch:
    wait_until(lambda: sdk.batches.retrieve(key).status not in OPEN, SECONDS, "the batch is over")
    return sdk.batches.retrieve(key)


def answers(sdk: openai.OpenAI, file: str | None) -> dict[str, dict[str, Any]]:
    """The lines of an output or error file by custom_id, each of which must be there once."""
    read = [json.loads(text) for text in sdk.files.content(file).text.splitlines()]
    by_id = {answer["custom_id"]: answer for answer in read}
    assert len(by_id) == len(read)
    return by_id


def test_a_batch_from_its_input_to_its_files(sdk, start):
    chat = {"messages": [{"role": "user", "content": "Hi\n\nthere 你好"}], "max_tokens": 3, "prompt": None}
    url = "/v1/chat/completions"
    content = jsonl(line("a", url, **chat), line("ü", f"{url}/", **chat, seed=3), line("bad", url, **chat, top_p=7))
    begun = start(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n\r\n"), url, metadata={"owner": "me"})
    assert (begun.object, begun.endpoint, begun.completion_window) == ("batch", url, "24h")
    assert begun.expires_at - begun.created_at == 24 * 3600
    assert begun.metadata == {"owner": "me"}

    batch = finished(sdk, begun.id)
    assert batch.status == "completed"
    assert batch.errors is None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert [batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at] == [None] * 4

    good = answers(sdk, batch.output_file_id)
    assert good.keys() == {"a", "ü"}
    for answer in good.values():
        assert answer.keys() == {"id", "custom_id", "response", "error"}
        assert answer["id"].startswith("batch_req_")
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["request_id"]
        assert answer["response"]["body"]["object"] == "chat.completion"
    used = [answer["response"]["body"]["usage"] for answer in good.values()]
    assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in used) > 0
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in used) > 0

    (bad,) = answers(sdk, batch.error_file_id).values()
    assert bad["custom_id"] == "bad"
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["param"] == "top_p"
    assert sdk.files.retrieve(batch.output_file_id).purpose == "batch_output"
    assert batch.output_file_id in [file.id for file in sdk.files.list(purpose="batch_output")]


def test_responses_can_be_had_in_a_batch(sdk, start):
    url = "/v1/responses"
    request = {"custom_id": "a", "method": "POST", "url": url, "body": {"input": "Hi", "max_output_tokens": 16}}
    batch = finished(sdk, start(jsonl(request), url).id)
    body = answers(sdk, batch.output_file_id)["a"]["response"]["body"]
    assert body["object"] == "response"
    assert batch.usage.input_tokens == body["usage"]["input_tokens"] > 0
    assert batch.usage.output_tokens == body["usage"]["output_tokens"] > 0


def test_a_line_is_answered_as_its_jobs_owner(sdk, start, api):
    """It goes on from the owner's own sessions and responses, and what it leaves behind is theirs."""
    earlier = sdk.responses.create(model="rwkv7", input="Hi", max_output_tokens=4)
    body = {"input": "And?", "max_output_tokens": 4, "previous_response_id": earlier.id}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    batch = finished(sdk, start(jsonl(line), "/v1/responses").id)
    answer = answers(sdk, batch.output_file_id)["a"]["response"]["body"]
    assert sdk.responses.retrieve(answer["id"]).previous_response_id == earlier.id

    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "session_id": "from a line"}
    url = "/v1/chat/completions"
    finished(sdk, start(jsonl({"custom_id": "a", "method": "POST", "url": url, "body": chat}), url).id)
    assert "from a line" in [session["session_id"] for session in api.get("/state/status").reply["sessions"]]


def test_a_bad_input_fails_and_names_its_lines(sdk, start):
    content = jsonl(line("a")) + b"{\n\n" + jsonl(line("a"), line("b"))
    batch = finished(sdk, start(content).id)
    assert batch.status == "failed"
    assert batch.failed_at
    assert batch.errors.object == "list"
    assert [(error.line, error.code, error.param) for error in batch.errors.data] == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
    ]
    assert batch.output_file_id is None
    assert batch.error_file_id is None
    assert batch.in_progress_at is None
    with pytest.raises(openai.BadRequestError, match="failed cannot be cancelled"):
        sdk.batches.cancel(batch.id)


def test_a_cancelled_batch_keeps_what_is_finished(sdk, start):
    slow = [line(f"slow {n}", max_tokens=60_000, ignore_eos=True) for n in range(5)]
    batch = start(jsonl(line("quick"), *slow))
    wait_until(lambda: sdk.batches.retrieve(batch.id).request_counts.completed, SECONDS, "a line is answered")
    cancelled = sdk.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at
    batch = finished(sdk, batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelled_at >= batch.cancelling_at
    assert answers(sdk, batch.output_file_id).keys() == {"quick"}
    left = answers(sdk, batch.error_file_id)
    assert len(left) == 5
    assert {answer["error"]["code"] for answer in left.values()} == {"batch_cancelled"}
    assert batch.request_counts.to_dict() == {"total": 6, "completed": 1, "failed": 0}
    assert sdk.batches.cancel(batch.id).status == "cancelled"  # once more changes nothing


def test_a_batch_that_takes_too_long_expires_and_keeps_what_is_finished(sdk, start):
    finished(sdk, start(jsonl(line("first"))).id)  # Celery is up: the window begins with the job
    batch = start(jsonl(line("quick"), line("slow", max_tokens=60_000, ignore_eos=True)), window="15s")
    batch = finished(sdk, batch.id)
    assert batch.status == "expired"
    assert batch.expired_at >= batch.expires_at
    assert answers(sdk, batch.output_file_id).keys() == {"quick"}
    (left,) = answers(sdk, batch.error_file_id).values()
    assert (left["custom_id"], left["response"], left["error"]["code"]) == ("slow", None, "batch_expired")


def test_the_sdk_walks_the_pages_of_a_list(sdk, start):
    ids = [start(b"").id for _ in range(3)]
    assert [batch.id for batch in sdk.batches.list(limit=1)][:3] == ids[::-1]
    page = sdk.batches.list(limit=1, after=ids[2])
    assert ([batch.id for batch in page.data], page.has_more) == ([ids[1]], True)
    for key in ids:
        assert finished(sdk, key).errors.data[0].code == "empty_file"
