"""The engines page in a real browser: login, live rows, nothing from another host, no console errors."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from rwkvsite.env import BASE_DIR

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PASSWORD = "correct horse battery staple"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs a browser at {CHROMIUM}"),
]


@pytest.fixture
def page(service):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=OPTIONS)
        try:
            yield browser.new_page(viewport={"width": 1360, "height": 1000})
        finally:
            browser.close()


@pytest.fixture(scope="module")
def operator(service) -> str:
    """A user of the admin."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "rwkvsite.settings",
        "VAR_DIR": str(service.var_dir),
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
    }
    command = [sys.executable, str(BASE_DIR / "manage.py"), "createsuperuser", "--noinput"]
    subprocess.run([*command, "--username", "operator", "--email", "o@example.org"], env=environment, check=True)
    return "operator"


def log_in(page: Page, url: str, user: str) -> None:
    page.goto(f"{url}/admin/")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", PASSWORD)
    page.press("input[name=password]", "Enter")
    page.wait_for_url(f"{url}/admin/")


def test_running_rows_appear_and_go_while_one_watches(service, operator, page):
    complaints: list[str] = []
    hosts: set[str] = set()
    page.on("response", lambda response: complaints.append(response.url) if response.status >= 400 else None)
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))

    log_in(page, service.url, operator)
    page.goto(f"{service.url}/admin/inference/engine/")
    expect(page.get_by_text("rwkv7-random-tiny").first).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("live")

    stop = threading.Event()
    watched = threading.Thread(target=_stream, args=(service.url, stop))
    watched.start()
    try:
        expect(page.get_by_text("completions").first).to_be_visible(timeout=15_000)
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=str(Path(folder) / "engines.png"))
    finally:
        stop.set()
        watched.join()
    expect(page.get_by_text("completions")).to_have_count(0, timeout=15_000)
    assert complaints == []
    assert {host for host in hosts if host} == {urlsplit(service.url).netloc}


def _stream(url: str, stop: threading.Event) -> None:
    """One long answer, read until told to stop."""
    body = {"prompt": ["Once", "Twice", "Thrice"], "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        while not stop.is_set() and response.readline():
            pass


def test_the_page_asks_for_a_login(service, page):
    page.goto(f"{service.url}/admin/inference/engine/")
    expect(page.locator("input[name=password]")).to_be_visible()
