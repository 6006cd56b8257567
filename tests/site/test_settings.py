import os
import stat
import subprocess
import sys
from http import HTTPStatus

import pytest
from django.core import checks

from rwkvsite.env import BASE_DIR, parse
from rwkvsite.secret import secret_key


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", **environment}
    command = [sys.executable, BASE_DIR / "manage.py", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_the_secret_key_is_made_once_and_readable_by_its_owner_alone(tmp_path):
    first = secret_key(tmp_path / "var")
    assert secret_key(tmp_path / "var") == first
    assert len(first) >= 50
    assert stat.S_IMODE((tmp_path / "var" / "secret_key").stat().st_mode) == 0o600
    assert secret_key(tmp_path / "other") != first


def test_a_bad_variable_ends_any_command_with_one_line(tmp_path):
    done = manage("check", VAR_DIR=str(tmp_path), PORT="eighty")
    assert done.returncode == 1
    assert done.stderr == "error: PORT must be a whole number from 1 to 65535, not 'eighty'\n"


def test_a_model_that_is_not_there_is_named(tmp_path):
    done = manage("check", VAR_DIR=str(tmp_path), MODEL=str(tmp_path / "gone.pth"))
    assert done.returncode == 1
    assert "MODEL names" in done.stderr
    assert "gone.pth" in done.stderr


def test_deployment_checks_are_clean_on_loopback():
    assert checks.run_checks(include_deployment_checks=True) == [
        issue for issue in checks.run_checks(include_deployment_checks=True) if issue.is_silenced()
    ]


def test_plain_http_on_a_public_address_is_warned_of(settings):
    settings.RWKV = parse({"HOST": "0.0.0.0"})
    found = {issue.id for issue in checks.run_checks(include_deployment_checks=True)}
    assert {"rwkv.W002", "rwkv.W003"} <= found


def test_a_lost_security_middleware_is_an_error(settings):
    settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "Csrf" not in path]
    errors = [issue for issue in checks.run_checks() if issue.id == "rwkv.E001"]
    assert "CsrfViewMiddleware" in errors[0].msg


@pytest.mark.django_db
def test_pages_get_djangos_protection_and_the_api_is_spared_it(client):
    page = client.get("/admin/login/")
    assert page.status_code == HTTPStatus.OK
    assert page.headers["X-Frame-Options"] == "DENY"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "csrftoken" in page.cookies
    other = client.get("/no/such/thing")
    assert other.status_code == HTTPStatus.NOT_FOUND
    assert "X-Frame-Options" not in other.headers


@pytest.mark.django_db
async def test_pages_are_protected_under_asgi_too(async_client):
    page = await async_client.get("/admin/login/")
    assert page.headers["X-Frame-Options"] == "DENY"
    async_client.handler.enforce_csrf_checks = True
    refused = await async_client.post("/admin/login/", {"username": "a", "password": "b"})
    assert refused.status_code == HTTPStatus.FORBIDDEN


@pytest.mark.django_db
async def test_requests_are_named(async_client):
    given = await async_client.get("/no/such/thing", headers={"X-Request-ID": "job-17"})
    assert given.headers["X-Request-ID"] == "job-17"
    unsafe = await async_client.get("/no/such/thing", headers={"X-Request-ID": "a b\tc"})
    assert len(unsafe.headers["X-Request-ID"]) == 32


async def test_static_files_are_served_without_collecting_them(async_client):
    script = await async_client.get("/static/inference/live.js")
    assert script.status_code == HTTPStatus.OK
    assert b"WebSocket" in script.content
    missing = await async_client.get("/static/no-such-file.js")
    assert missing.status_code == HTTPStatus.NOT_FOUND


def test_sqlite_waits_for_its_turn_to_write(tmp_path):
    code = (
        "from django.db import connection as c; cursor = c.cursor(); "
        "print(*(cursor.execute(f'PRAGMA {p}').fetchone()[0] for p in ('journal_mode', 'page_size', 'synchronous')), "
        "c.transaction_mode)"
    )
    done = manage("shell", "--no-imports", "-c", code, VAR_DIR=str(tmp_path))
    assert done.stdout.split() == ["wal", "65536", "1", "IMMEDIATE"], done.stderr
