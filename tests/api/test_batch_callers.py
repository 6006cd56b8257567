"""/v1/batches: what is refused, who sees what, and whose requests come first."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.core.files.uploadedfile import SimpleUploadedFile
from redis import asyncio as aioredis

from inference.api.edge import worker_key
from inference.bus import keys
from inference.bus.messages import Generate, ModelInfo
from inference.models import ApiKey
from sessions.models import Session
from sessions.store import NewTurn, commit_turn, read_head
from tests.api.batch_input import ENDPOINT
from tests.api.test_auth import bearer, capture_queries

SECONDS = 60.0


@pytest.fixture
def own_folder(tmp_path, change_settings) -> Path:
    """Files of the views in this process."""
    change_settings(var_dir=tmp_path)
    return tmp_path


async def upload(client, content: bytes = b"{}", **headers: str) -> str:
    body = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", content)}
    return (await client.post("/v1/files", body, headers=headers)).json()["id"]


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
