"""Text that a database refuses: it is a client's mistake, or none at all, and never a 5xx."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from tests.api.test_auth import post
from tests.site import test_postgres
from tests.site.test_postgres import database_url  # noqa: F401
from tests.site.test_settings import manage

CHAT = {"messages": [{"role": "user", "content": "a"}]}
LOOK_UP = """
from sessions.initial_states import find_state
print(find_state("me", "a\\0b"))
"""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/state/chat/completions", {"contents": ["a"]}),
        ("/multi_state/chat/completions", {"contents": ["a"], "dialogue_idx": 0}),
        ("/state/delete", {}),
    ],
)
async def test_a_nul_in_a_sessions_id_is_refused_by_name(client, deaf_engine, path, body):
    answer = await post(client, path, body | {"session_id": "a\0b"})
    assert answer.status_code == 400
    assert "session_id" in answer.content.decode()


async def test_a_state_whose_id_has_a_nul_is_not_there(client, deaf_engine):
    answer = await post(client, "/v1/completions", {"prompt": "a", "state_id": "a\0b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "state_id")
    assert (await client.delete("/v1/state/delete?state_id=a%00b")).status_code == 404
    assert (await client.get("/v1/responses/a%00b")).status_code == 404
    answer = await post(client, "/v1/responses", {"input": "a", "previous_response_id": "a\0b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")


async def test_a_long_name_of_a_file_is_cut(client, tmp_path, change_settings):
    change_settings(var_dir=tmp_path)
    name = "n" * 300
    body = {"purpose": "batch", "file": SimpleUploadedFile("short", b"{}")}
    body["file"]._name = name  # its setter would cut it
    answer = await client.post("/v1/files", body)
    assert (answer.status_code, answer.json()["filename"]) == (200, name[:255])


async def test_a_state_matters_only_where_text_is_generated(client, deaf_engine):
    unknown = {"x-rwkv-state-id": "unknown"}
    assert (await client.get("/v1/models", headers=unknown)).status_code == 200
    assert (await client.post("/ping", headers=unknown)).status_code == 200
    assert (await post(client, "/v1/completions", {"prompt": "a"}, headers=unknown)).status_code == 400


@pytest.mark.skipif(not test_postgres.URL, reason="TEST_POSTGRES_URL is not set")
def test_postgresql_is_not_asked_for_a_nul(tmp_path, database_url):  # noqa: F811
    environment = {"VAR_DIR": str(tmp_path), "DATABASE_URL": database_url}
    assert manage("migrate", "--verbosity", "0", **environment).returncode == 0
    done = manage("shell", "--no-imports", "-c", LOOK_UP, **environment)
    assert done.stdout.split() == ["None"], done.stderr
