"""/v1/batches: jobs from end to end with the official SDK, and the lease that keeps them whole."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from asgiref.sync import sync_to_async
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone
from openai.types import Batch
from redis import asyncio as aioredis

from inference.api.edge import worker_key
from inference.batches import lines, tasks
from inference.batches.lines import check_input, read_lines
from inference.batches.models import BatchJob, BatchLine, LeaseLost, Status, StoredFile
from inference.bus import keys
from inference.bus.messages import Generate, ModelInfo
from inference.models import ApiKey
from sessions.models import Session
from sessions.store import NewTurn, commit_turn, read_head
from tests.api.test_auth import bearer, capture_queries
from tests.service import wait_until

ENDPOINT = "/v1/completions"
SECONDS = 60.0
OPEN = ("validating", "in_progress", "finalizing", "cancelling")


def line(custom_id: str, url: str = ENDPOINT, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "a", "max_tokens": 2, **body}}


def jsonl(*requests: Any) -> bytes:
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


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
    batch = start(jsonl(line("quick"), line("slow", max_tokens=60_000, ignore_eos=True)), window="5s")
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


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"endpoint": "/v1/nothing"}, 400, "endpoint"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"input_file_id": "file-nothing"}, 404, "input_file_id"),
        ({"input_file_id": "\0"}, 400, "input_file_id"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"completion_window": "31d"}, 400, "completion_window"),
        ({"metadata": {"a": "\0"}}, 400, "metadata[...]"),
        ({"metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
    ],
)
async def test_a_bad_value_is_refused_by_name(client, own_folder, fields, status, param):
    file = await upload(client)
    body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h", **fields}
    answer = await client.post("/v1/batches", body, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


# -- who sees what, and who comes first ------------------------------------------------------------


@pytest.fixture
def own_folder(tmp_path, change_settings) -> Path:
    """Files of the views in this process."""
    change_settings(var_dir=tmp_path)
    return tmp_path


async def upload(client, content: bytes = b"{}", **headers: str) -> str:
    body = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", content)}
    return (await client.post("/v1/files", body, headers=headers)).json()["id"]


async def test_a_key_sees_its_own_batches_alone(client, own_folder):
    mine, other = [(await sync_to_async(ApiKey.objects.issue)(name=name))[1] for name in ("mine", "other")]
    body = {"input_file_id": await upload(client, **bearer(mine)), "endpoint": ENDPOINT}
    post = {"content_type": "application/json"}
    assert (await client.post("/v1/batches", body, headers=bearer(other), **post)).status_code == 404
    batch = (await client.post("/v1/batches", body, headers=bearer(mine), **post)).json()["id"]
    for secret, status in [(mine, 200), (other, 404)]:
        assert (await client.get(f"/v1/batches/{batch}", headers=bearer(secret))).status_code == status
    assert (await client.post(f"/v1/batches/{batch}/cancel", headers=bearer(other))).status_code == 404
    for secret, ids in [(mine, [batch]), (other, [])]:
        listed = (await client.get("/v1/batches/", headers=bearer(secret))).json()
        assert [entry["id"] for entry in listed["data"]] == ids
    assert (await client.post(f"/v1/batches/{batch}/cancel", headers=bearer(mine))).json()["status"] == "cancelling"


async def queued(connection: aioredis.Redis) -> tuple[int, int]:
    """Rows in the deaf engine's queues: offline, and interactive."""
    return await connection.xlen(keys.requests("deaf", offline=True)), await connection.xlen(keys.requests("deaf"))


async def test_a_list_is_one_query_for_its_page(client, own_folder):
    body = {"input_file_id": await upload(client), "endpoint": ENDPOINT}
    for _ in range(3):
        await client.post("/v1/batches", body, content_type="application/json")
    with capture_queries() as queries:
        assert len((await client.get("/v1/batches")).json()["data"]) == 3
    assert len([query for query in queries if "inference_batch" in query or "inference_storedfile" in query]) == 1
    assert not any("inference_batchline" in query for query in queries)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ENDPOINT, {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/chat/completions", {"contents": ["a"]}),
        ("/v1/responses", {"input": "a"}),
    ],
)
async def test_a_workers_requests_wait_behind_everyone_elses(client, remote, deaf_engine, redis_url, path, body):
    post = {"content_type": "application/json"}
    async with aioredis.Redis.from_url(redis_url) as connection:
        for caller, headers, lengths in [(remote, bearer(worker_key.issue()), (1, 0)), (client, {}, (0, 1))]:
            running = asyncio.create_task(caller.post(path, body, headers=headers, **post))
            async with asyncio.timeout(SECONDS):
                while await queued(connection) != lengths:
                    assert not running.done(), running.result().content
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait([running])


async def test_a_workers_key_opens_its_owners_sessions_alone(client, remote, deaf_engine, redis_url):
    """The session that a line continues is found by the job's owner: another key's has the same id, and stays apart."""
    (mine, _), (other, _) = [await sync_to_async(ApiKey.objects.issue)(name=name) for name in ("mine", "other")]
    owners = [f"key-{mine.pk}", f"key-{other.pk}"]
    model = ModelInfo(id="deaf", layers=1, width=64, vocab=65536, parameters=1, fingerprint="0" * 64)
    turn = NewTurn(prompt=[1], reply=[2], sampling={}, finish_reason="stop", duration=0.0)
    for owner in owners:
        head = await sync_to_async(read_head)(owner, "s", model)
        await sync_to_async(commit_turn)(head, turn)
    expected = [await Session.objects.values_list("pk", flat=True).aget(owner=owner) for owner in owners]
    body = {"messages": [{"role": "user", "content": "a"}], "session_id": "s"}
    found = []
    async with aioredis.Redis.from_url(redis_url) as connection:
        for owner in owners:
            headers = bearer(worker_key.issue(owner))
            path = "/v1/chat/completions"
            running = asyncio.create_task(remote.post(path, body, headers=headers, content_type="application/json"))
            stream = keys.requests("deaf", offline=True)
            async with asyncio.timeout(SECONDS):
                while not (entries := await connection.xrange(stream)):
                    assert not running.done(), running.result().content
                    await asyncio.sleep(0.01)
            found.append(msgspec.msgpack.decode(entries[0][1][b"m"], type=Generate).history.session)
            await connection.delete(stream)
            running.cancel()
            await asyncio.wait([running])
    assert found == expected


async def test_a_workers_key_cannot_be_made_up_and_does_not_last(client, remote, monkeypatch):
    key = worker_key.issue("key-1")
    for wrong in ("worker:", key.replace("key-1", "key-2"), f"{key[:-1]}{'a' if key[-1] != 'a' else 'b'}"):
        assert (await remote.get("/v1/models", headers=bearer(wrong))).status_code == 401
    assert (await remote.get("/v1/models", headers=bearer(key))).status_code == 200
    monkeypatch.setattr(worker_key, "SECONDS", -1.0)
    assert (await remote.get("/v1/models", headers=bearer(key))).status_code == 401


# -- the check of an input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (b"[]", "invalid_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"{}", "missing_required_parameter", "custom_id"),
        (jsonl({**line("a"), "custom_id": 5}), "invalid_line", "custom_id"),
        (jsonl(line("")), "invalid_line", "custom_id"),
        (jsonl({**line("a"), "method": "GET\0"}), "invalid_line", "method"),
        (jsonl(line("a", "/v1/chat/completions")), "invalid_url", "url"),
        (jsonl({**line("a"), "body": "text"}), "invalid_body", "body"),
        (jsonl(line("a", stream=True)), "invalid_body", "body.stream"),
        (jsonl(line("a"), line("a")), "duplicate_custom_id", "custom_id"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"n": NaN}}',
            "invalid_json_line",
            None,
        ),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": %b}' % (b'{"a":' * 100_000),
            "invalid_json_line",
            None,
        ),
    ],
)
def test_what_an_input_is_refused_for(tmp_path, content, code, param):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    (error,) = check_input(path, ENDPOINT).errors
    assert (error.code, error.param) == (code, param)
    assert "\0" not in error.message


def test_an_input_is_bounded(tmp_path, monkeypatch, change_settings):
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl(line("a"), line("b"), line("c")))
    assert check_input(path, ENDPOINT).total == 3
    monkeypatch.setattr(lines, "MAX_LINES", 2)
    (error,) = check_input(path, ENDPOINT).errors
    assert (error.code, error.line) == ("too_many_lines", 3)
    change_settings(max_body_bytes=60)
    assert max(len(text) for _, text in read_lines(path)) == 61
    assert check_input(path, ENDPOINT).errors[0].code == "line_too_long"


# -- the lease -------------------------------------------------------------------------------------


@pytest.fixture
def job(db) -> BatchJob:
    file = StoredFile.objects.create(owner="me", purpose="batch", filename="in.jsonl", bytes=1)
    return BatchJob.objects.create(
        owner="me", endpoint=ENDPOINT, completion_window="24h", input_file=file, expires_at=timezone.now(), total=2
    )


def let_the_lease_lapse(job: BatchJob) -> None:
    BatchJob.objects.filter(pk=job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))


def test_a_job_is_claimed_once_until_its_runner_is_silent(job):
    first = BatchJob.objects.claim(job.key)
    assert first
    assert BatchJob.objects.claim(job.key) is None  # the same message, delivered again
    let_the_lease_lapse(job)
    first.write()
    assert BatchJob.objects.claim(job.key) is None  # a sign of life
    let_the_lease_lapse(job)
    second = BatchJob.objects.claim(job.key)
    with pytest.raises(LeaseLost):
        first.write(completed=1)
    first.release()  # of no effect
    assert BatchJob.objects.claim(job.key) is None
    second.release()
    assert BatchJob.objects.claim(job.key)
    BatchJob.objects.update(status=Status.COMPLETED, lease="")
    assert BatchJob.objects.claim(job.key) is None


def test_a_runner_does_not_overwrite_a_cancellation(job):
    runner = BatchJob.objects.claim(job.key)
    BatchJob.objects.update(status=Status.CANCELLING)
    assert not runner.write(Status.VALIDATING, status=Status.IN_PROGRESS, total=9)
    assert (runner.status, runner.total) == (Status.CANCELLING, 2)


def test_the_database_refuses_a_second_answer_and_impossible_counts(job):
    BatchLine.objects.create(batch=job, number=1, failed=False, answer="{}")
    for wrong in (
        lambda: BatchLine.objects.create(batch=job, number=1, failed=True, answer="{}"),
        lambda: BatchJob.objects.update(completed=2, failed=1),
        lambda: BatchJob.objects.update(status="lost"),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            wrong()


def test_the_schedule_resumes_what_nobody_runs(job, monkeypatch):
    queued = []
    monkeypatch.setattr(tasks.run_batch, "delay", queued.append)
    BatchJob.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    file = job.input_file
    other = BatchJob.objects.create(owner="me", endpoint=ENDPOINT, input_file=file, expires_at=job.expires_at)
    later = BatchJob.objects.create(
        owner="me", endpoint=ENDPOINT, input_file=file, expires_at=timezone.now() + timedelta(hours=1)
    )
    tasks.queue_batches()
    assert queued == [other.key, job.key]  # one that only has to be closed, and the oldest
    BatchJob.objects.claim(job.key)
    BatchJob.objects.claim(other.key)
    queued.clear()
    tasks.queue_batches()
    assert queued == []
    let_the_lease_lapse(job)
    tasks.queue_batches()
    assert queued == [job.key]
    BatchJob.objects.filter(pk=job.pk).update(status=Status.COMPLETED)
    tasks.queue_batches()
    assert queued == [job.key, later.key]


# -- the admin -------------------------------------------------------------------------------------


def test_the_list_in_the_admin_costs_the_same_for_any_number(
    admin_client, job, django_assert_max_num_queries, django_assert_num_queries
):
    BatchLine.objects.create(batch=job, number=1, failed=True, answer="the answer itself")
    for _ in range(30):
        BatchJob.objects.create(owner="me", endpoint=ENDPOINT, input_file=job.input_file, expires_at=timezone.now())
    with django_assert_max_num_queries(9) as queries:
        page = admin_client.get(reverse("admin:inference_batchjob_changelist")).text
    assert job.key in page
    assert "0 / 0 / 2" in page
    assert not any("inference_batchline" in query["sql"] for query in queries.captured_queries)


def test_the_page_of_a_job_shows_what_failed(admin_client, job):
    BatchLine.objects.create(batch=job, number=1, failed=True, answer='{"error": "<b>why</b>"}')
    BatchLine.objects.create(batch=job, number=2, failed=False, answer="a success")
    BatchJob.objects.update(errors=[{"code": "invalid_line", "message": "no <b>id", "param": None, "line": 7}])
    page = admin_client.get(reverse("admin:inference_batchjob_change", args=[job.pk])).text
    assert "&lt;b&gt;why" in page
    assert "line 7: invalid_line: no &lt;b&gt;id" in page
    assert "a success" not in page


def test_cancelling_in_the_admin(admin_client, job, redis_url):
    done = BatchJob.objects.create(
        owner="me", endpoint=ENDPOINT, input_file=job.input_file, expires_at=timezone.now(), status=Status.COMPLETED
    )
    answer = admin_client.post(
        reverse("admin:inference_batchjob_changelist"),
        {"action": "cancel", "_selected_action": [job.pk, done.pk]},
        follow=True,
    )
    assert f"{job.key} is cancelling" in answer.text
    assert f"{done.key}: a batch that is completed cannot be cancelled" in answer.text
    job.refresh_from_db()
    assert job.status == Status.CANCELLING
    assert job.cancelling_at
