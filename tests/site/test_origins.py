"""Which pages in a browser may call the API without a key. For WebSockets see test_live_page.py."""

import dataclasses

import pytest
import redis
from django.test import AsyncClient

from inference.api.edge import auth
from inference.api.rows.engines import bus
from rwkvsite.origins import is_own

ADMITTED = 503  # there is no engine
FOREIGN = ("http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1", "null", "http://[", "")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://localhost", "localhost"),
        ("http://LOCALHOST:80", "localhost"),
        ("https://a.example", "a.example:443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_a_servers_own_pages(origin, host):
    assert is_own(origin, host)


@pytest.mark.parametrize(
    "origin", [*FOREIGN, "http://localhost:8001", "http://localhost:8000x", "ftp://localhost:8000"]
)
def test_pages_of_others(origin):
    assert not is_own(origin, "localhost:8000")


@pytest.fixture
async def client(redis_url: str, transactional_db: None):
    """A program on this machine, while there is no key."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    auth.memory.forget()
    yield AsyncClient()
    await bus().close()


async def read(client, **headers):
    """What the API answers to a request that needs a caller."""
    return await client.post("/v1/chat/completions", b"{}", content_type="text/plain", headers=headers)


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_page_of_another_site_is_no_program_on_this_machine(client, origin):
    answer = await read(client, Origin=origin)
    assert answer.status_code == 403
    assert "pages of other sites may not call this server without a key" in answer.content.decode()


async def test_programs_and_our_own_pages_go_on_working(client):
    assert (await read(client)).status_code == ADMITTED
    assert (await read(client, Origin="http://testserver")).status_code == ADMITTED
    assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("allowed", ["http://evil.example", "*"])
async def test_pages_that_the_operator_named_are_admitted(client, settings, allowed):
    settings.RWKV = dataclasses.replace(settings.RWKV, cors_origins=(allowed,))
    assert (await read(client, Origin="http://evil.example")).status_code == ADMITTED
    other = await read(client, Origin="http://other.example")
    assert (other.status_code == ADMITTED) is (allowed == "*")


async def test_a_strange_page_with_a_key_is_admitted_and_without_one_it_is_asked_for_it(client, settings):
    settings.RWKV = dataclasses.replace(settings.RWKV, api_password="secret")
    assert (await read(client, Origin="http://evil.example")).status_code == 401
    assert (await read(client, Origin="http://evil.example", Authorization="Bearer secret")).status_code == ADMITTED


async def test_a_name_that_was_made_to_lead_here_is_not_ours(client, settings):
    assert (await client.get("/v1/models")).status_code == 200
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]  # and not the name that the client uses
    answer = await client.get("/v1/models")
    assert answer.status_code == 403 and "TRUSTED_HOSTS" in answer.content.decode()
