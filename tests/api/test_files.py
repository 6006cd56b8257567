"""/v1/files: uploads to storage, lists, downloads, and who may see what."""

import os
import time
from contextlib import closing

import openai
import pytest
from asgiref.sync import sync_to_async
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.db.models.signals import pre_save
from django.urls import reverse

from inference.api.edge import uploads
from inference.batches import storage
from inference.batches.actions import create_batch, remove_abandoned_files
from inference.batches.models import StoredFile
from inference.models import ApiKey
from tests.api.test_auth import bearer

CONTENT = '{"line": 1}\n{"line": "二"}\n'.encode()


def upload(content: bytes = CONTENT, name: str = "in.jsonl", **fields: str) -> dict:
    return {"purpose": "batch", "file": SimpleUploadedFile(name, content), **fields}


@sync_to_async
def issue(name: str) -> str:
    return ApiKey.objects.issue(name=name)[1]


def stored() -> list[str]:
    folder = storage.path_of("any").parent
    return [path.name for path in folder.iterdir()] if folder.exists() else []


@pytest.fixture(autouse=True)
def own_folder(tmp_path, change_settings) -> None:
    """Files of the views in this process."""
    change_settings(var_dir=tmp_path)


def test_an_upload_is_kept_byte_for_byte(sdk):
    file = sdk.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    assert file.id.startswith("file-")
    assert file.to_dict() == {
        "id": file.id,
        "object": "file",
        "bytes": len(CONTENT),
        "created_at": file.created_at,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "expires_at": None,
    }
    assert sdk.files.retrieve(file.id) == file
    assert sdk.files.content(file.id).read() == CONTENT


def test_what_killed_uploads_left_behind_goes_in_the_end(db):
    def write(key: str, *, old: bool, known: bool = False) -> None:
        with storage.NewFile(key) as file:
            file.write(CONTENT)
            file.keep()
        if known:
            StoredFile.objects.create(key=key, owner="me", purpose="batch", filename="a", bytes=len(CONTENT))
        if old:
            long_ago = time.time() - storage.ABANDONED_SECONDS - 60
            os.utime(storage.path_of(key), (long_ago, long_ago))

    write("file-unknown-old", old=True)
    write("file-unknown-new", old=False)  # its row may be about to come
    write("file-known", old=True, known=True)
    write(f"file-x{storage.PART}", old=True)
    write(f"file-y{storage.PART}", old=False)
    remove_abandoned_files()
    assert sorted(stored()) == ["file-known", "file-unknown-new", f"file-y{storage.PART}"]


def test_a_large_file_is_kept_byte_for_byte(sdk):
    content = bytes(range(256)) * 2**14
    file = sdk.files.create(file=("large.jsonl", content), purpose="batch")
    answer = sdk.files.content(file.id)
    assert answer.read() == content
    assert answer.response.headers["Content-Length"] == str(len(content))
    assert answer.response.headers["Content-Disposition"] == 'attachment; filename="large.jsonl"'


def test_a_deleted_file_is_gone(sdk):
    file = sdk.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    assert sdk.files.delete(file.id).to_dict() == {"id": file.id, "object": "file", "deleted": True}
    for action in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            action(file.id)
    assert file.id not in [other.id for other in sdk.files.list()]


def test_the_sdk_walks_the_pages_of_a_list(sdk):
    ids = [sdk.files.create(file=(f"{n}.jsonl", b"{}"), purpose="batch").id for n in range(5)]
    newest = [file.id for file in sdk.files.list(limit=2, purpose="batch")]
    assert newest[:5] == ids[::-1]
    assert [file.id for file in sdk.files.list(limit=2, order="asc")][-5:] == ids
    page = sdk.files.list(limit=2, after=ids[4], extra_query={"order": "desc"})
    assert [file.id for file in page.data] == [ids[3], ids[2]]
    assert page.has_more
    assert page.to_dict()["first_id"] == ids[3]
    assert page.to_dict()["last_id"] == ids[2]
    assert not sdk.files.list(purpose="batch_nothing").data


async def test_the_content_is_on_disk_and_nothing_else(client):
    file = (await client.post("/v1/files", upload())).json()
    assert stored() == [file["id"]]
    assert storage.path_of(file["id"]).read_bytes() == CONTENT
    assert (await client.delete(f"/v1/files/{file['id']}/")).status_code == 200
    assert stored() == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"purpose": "batch"}, "file"),
        ({"purpose": "batch", "file": "text and no file"}, "file"),
        ({"purpose": "batch", "other": SimpleUploadedFile("in.jsonl", CONTENT)}, "file"),
        (upload(purpose="fine-tune"), "purpose"),
        ({"file": SimpleUploadedFile("in.jsonl", CONTENT)}, "purpose"),
    ],
)
async def test_an_upload_that_lacks_something_is_refused_and_not_kept(client, body, param):
    answer = await client.post("/v1/files", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert stored() == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"--x\r\nContent-Dis", "multipart/form-data; boundary=x"),
        (b"\xff\0", "multipart/form-data; boundary=x"),
    ],
)
async def test_a_body_that_is_no_upload_is_refused(client, body, kind):
    answer = await client.post("/v1/files", body, content_type=kind)
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=x"])
def test_the_server_leaves_forms_to_the_view(api, kind):
    """Twisted would read a form too, all of it into memory, and hang up on one that is broken."""
    answer = api.post("/v1/files", b"\xff no form", Content_Type=kind)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_a_file_that_is_too_large_is_refused_however_it_comes(client, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_FILE_BYTES", 1000)
    assert (await client.post("/v1/files", upload(b"x" * 1000))).status_code == 200
    assert (await client.post("/v1/files", upload(b"x" * 1001))).status_code == 413
    monkeypatch.setattr(uploads, "MAX_OTHER_BYTES", 10)
    assert (await client.post("/v1/files", upload(b"x" * 1000))).status_code == 413  # by what it announces
    assert len(stored()) == 1


async def test_an_upload_whose_row_cannot_be_written_is_not_kept(client):
    def refuse(**kwargs: object) -> None:
        raise OperationalError("the disk is full")

    pre_save.connect(refuse, sender=StoredFile)
    try:
        assert (await client.post("/v1/files", upload())).status_code == 503
    finally:
        pre_save.disconnect(refuse, sender=StoredFile)
    assert stored() == []


async def test_a_file_whose_content_could_not_be_removed_can_be_deleted_again(client):
    file = (await client.post("/v1/files", upload())).json()
    path = storage.path_of(file["id"])
    path.unlink()
    path.mkdir()  # which cannot be unlinked
    assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 500
    path.rmdir()
    path.write_bytes(CONTENT)
    assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 200
    assert stored() == []


async def test_a_file_name_is_only_a_name(client):
    file = (await client.post("/v1/files", upload(name='../../etc/"pa\0ss"\r\nwd'))).json()
    assert "/" not in file["filename"]
    assert "\0" not in file["filename"]
    with closing(await client.get(f"/v1/files/{file['id']}/content")) as answer:
        assert b"".join([chunk async for chunk in answer]) == CONTENT


async def test_a_key_sees_its_own_files_alone(client, remote):
    mine, other = await issue("mine"), await issue("other")
    file = (await client.post("/v1/files", upload(), headers=bearer(mine))).json()
    for path in (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content"):
        for secret, status in [(mine, 200), (other, 404)]:
            with closing(await client.get(path, headers=bearer(secret))) as answer:
                assert answer.status_code == status
    assert (await client.delete(f"/v1/files/{file['id']}", headers=bearer(other))).status_code == 404
    assert (await client.get("/v1/files", headers=bearer(other))).json() == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }
    after = await client.get(f"/v1/files?after={file['id']}", headers=bearer(other))
    assert (after.status_code, after.json()["error"]["param"]) == (400, "after")
    assert (await remote.post("/v1/files", upload())).status_code == 401
    assert stored() == [file["id"]]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=10001", "order=up", "after=%00", "purpose=%00"])
async def test_a_bad_query_is_refused_by_name(client, query):
    answer = await client.get(f"/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


async def test_the_input_of_a_batch_that_is_not_over_cannot_be_deleted(client):
    file = (await client.post("/v1/files", upload())).json()
    await sync_to_async(create_batch)(
        owner="loopback", input_file_key=file["id"], endpoint="/v1/completions", completion_window="24h"
    )
    assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 400
    assert stored() == [file["id"]]


@pytest.mark.django_db
def test_the_list_in_the_admin_costs_the_same_for_any_number(admin_client, django_assert_max_num_queries):
    StoredFile.objects.bulk_create(
        StoredFile(key=f"file-{n}", owner="me", purpose="batch", filename=f"{n}", bytes=n) for n in range(30)
    )
    with django_assert_max_num_queries(8):
        assert "file-29" in admin_client.get(reverse("admin:inference_storedfile_changelist")).text
