"""The operations page end to end: a login through the form, and the live updates through daphne."""

import asyncio
import json
import os
import subprocess
import sys

import aiohttp
import pytest

from rwkvsite.env import BASE_DIR

LIVE = "/ws/admin/operations/"


@pytest.fixture(scope="module")
def superuser(service) -> dict[str, str]:
    user = {"username": "ada", "password": "lovelace"}
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir)}
    env |= {"DJANGO_SUPERUSER_USERNAME": user["username"], "DJANGO_SUPERUSER_PASSWORD": user["password"]}
    command = [sys.executable, BASE_DIR / "manage.py", "createsuperuser", "--noinput", "--email", "ada@example.org"]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)
    return user


@pytest.fixture
async def browser(service, superuser):
    """An HTTP session that is logged in."""
    async with aiohttp.ClientSession(service.url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get("/admin/login/") as page:
            token = page.cookies["csrftoken"].value
        form = {**superuser, "csrfmiddlewaretoken": token, "next": "/admin/"}
        async with session.post("/admin/login/", data=form, headers={"Origin": service.url}) as answer:
            assert answer.status == 200
            assert "sessionid" in {cookie.key for cookie in session.cookie_jar}
        yield session


async def test_the_running_engine_is_on_the_page(browser, service):
    async with browser.get("/admin/inference/engine/") as page:
        text = await page.text()
    assert "rwkv7-random-tiny" in text
    assert "http://" not in text.replace("http://www.w3.org/", "")  # nothing from elsewhere
    assert "https://" not in text


async def test_updates_come_by_themselves(browser, service):
    body = {"prompt": "Once", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    async with browser.ws_connect(LIVE, origin=service.url) as live, asyncio.timeout(30):
        parts = [await live.receive_json() for _ in range(2)]
        assert {part["part"] for part in parts} == {"now", "charts"}
        async with browser.post("/v1/completions", json=body) as answer:
            await answer.content.readline()
            while "completions" not in (await live.receive_json())["html"]:
                pass


async def test_a_request_is_cancelled_whichever_process_has_it(browser, service):
    body = {"prompt": ["Once", "Twice"], "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    async with browser.get("/admin/inference/engine/") as page:
        token = page.cookies["csrftoken"].value
    headers = {"Accept": "application/json", "Origin": service.url, "X-CSRFToken": token}
    async with browser.post("/v1/completions", json=body) as answer, asyncio.timeout(30):
        first = json.loads((await answer.content.readline()).removeprefix(b"data: "))
        form = {"request": first["id"]}
        async with browser.post("/admin/inference/engine/cancel/", data=form, headers=headers) as cancelled:
            assert await cancelled.json() == {"message": "1 request was cancelled."}
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_another_site_cannot_cancel(browser):
    headers = {"Accept": "application/json", "Origin": "http://evil.example"}
    async with browser.post("/admin/inference/engine/cancel/", data={"all": "1"}, headers=headers) as refused:
        assert refused.status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", None])
async def test_pages_of_other_sites_and_ports_cannot_listen(browser, origin):
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await browser.ws_connect(LIVE, origin=origin)
    assert refused.value.status == 403


async def test_strangers_cannot_listen(service):
    async with aiohttp.ClientSession(service.url) as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(LIVE, origin=service.url)
        assert refused.value.status == 403
