"""The operations page in a real browser: live, cancel by keyboard, without a socket, both languages, accessible."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from rwkvsite.env import BASE_DIR
from tests.browser.visits import DESKTOP, PHONE, assert_accessible, screenshot, visit

PASSWORD = "correct horse battery staple"
PAGE = "/admin/inference/engine/"

pytestmark = pytest.mark.browser


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


@contextmanager
def streaming(url: str, rows: int = 3) -> Iterator[None]:
    """A request with that many rows runs meanwhile, unless somebody cancels it."""
    stop = threading.Event()
    reader = threading.Thread(target=_stream, args=(url, rows, stop))
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def _stream(url: str, rows: int, stop: threading.Event) -> None:
    body = {"prompt": ["Once"] * rows, "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        while not stop.is_set() and response.readline():
            pass


def requests_of(page: Page):
    return page.get_by_role("button", name=re.compile("Cancel request"))


def test_requests_appear_and_go_while_one_watches(service, operator, browser_page):
    page = browser_page
    log_in(page, service.url, operator)
    page.goto(PAGE)
    expect(page.get_by_text("rwkv7-random-tiny").first).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("live")
    with streaming(service.url):
        expect(page.get_by_text("completions").first).to_be_visible()
        expect(requests_of(page)).to_have_count(1)
        assert_accessible(page)
        page.set_viewport_size({"width": 1280, "height": 1090})  # down to the charts, which have nothing to show yet
        screenshot(page, "operations", whole=False)
    expect(requests_of(page)).to_have_count(0)
    expect(page.get_by_text("Nothing runs or waits.")).to_be_visible()


def test_by_keyboard_what_is_refreshed_keeps_focus_and_stays_open(service, operator, browser_page):
    page = browser_page
    log_in(page, service.url, operator)
    page.goto(PAGE)
    unfolded = page.locator("details.chart-data").first
    unfolded.locator("summary").focus()
    page.keyboard.press("Enter")
    with streaming(service.url), streaming(service.url):
        buttons = requests_of(page)
        expect(buttons).to_have_count(2)
        last = buttons.last
        name = last.get_attribute("aria-label")
        last.focus()
        age = last.locator("xpath=ancestor::tr/td[7]")
        before = age.inner_text()
        expect(age).not_to_have_text(before)  # it was refreshed
        expect(page.locator(":focus")).to_have_attribute("aria-label", name)
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").filter(has_text="1 request was cancelled.")).to_be_visible()
        expect(buttons).to_have_count(1)
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel all requests").focus()
        page.keyboard.press("Enter")
        expect(buttons).to_have_count(0)
    expect(unfolded).to_have_attribute("open", "")


def test_without_a_socket_the_page_polls(service, operator, browser_page):
    def refuse(socket: WebSocketRoute) -> None:
        socket.close()

    page = browser_page
    page.route_web_socket(re.compile("/ws/admin/operations/"), refuse)
    log_in(page, service.url, operator)
    page.goto(PAGE)
    expect(page.locator("#live-state")).to_have_text("every 2 seconds")
    with streaming(service.url):
        expect(requests_of(page)).to_have_count(1)
    expect(requests_of(page)).to_have_count(0)


def test_a_page_whose_login_is_over_says_so(service, operator, browser_page):
    page = browser_page
    page.route_web_socket(re.compile("/ws/admin/operations/"), lambda socket: socket.close())
    log_in(page, service.url, operator)
    page.goto(PAGE)
    with streaming(service.url):
        button = requests_of(page)
        expect(button).to_have_count(1)
        (session,) = [cookie for cookie in page.context.cookies() if cookie["name"] == "sessionid"]
        page.context.clear_cookies(name="sessionid")
        expect(page.locator("#live-state")).to_contain_text("your login is over: load the page again")
        button.click()
        expect(page.locator("#cancel-words")).to_have_text("your login is over: load the page again")
        page.context.add_cookies([session])
        expect(page.locator("#live-state")).to_have_text("every 2 seconds")


@pytest.mark.parametrize(("size", "name"), [(DESKTOP, "desktop"), (PHONE, "phone")])
def test_it_speaks_chinese_in_the_dark(service, operator, browser, size, name):
    with visit(browser, service.url, locale="zh-CN", color_scheme="dark", viewport=size) as page:
        log_in(page, service.url, operator)
        page.goto(PAGE)
        expect(page.get_by_role("heading", name="运行状况")).to_be_visible()
        expect(page.locator("#live-state")).to_have_text("实时")
        expect(page.get_by_text("没有正在运行或等待的请求。")).to_be_visible()
        expect(page.get_by_role("heading", name="最近一小时")).to_be_visible()
        assert_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
        for chart in page.locator(".chart-figure > .chart-scroll").all():  # the newest is what one sees
            assert chart.evaluate("chart => chart.scrollLeft + chart.clientWidth >= chart.scrollWidth - 1")
        screenshot(page, f"operations-dark-{name}")


def test_the_language_is_changed_in_the_console(service, operator, browser_page):
    page = browser_page
    log_in(page, service.url, operator)
    page.goto(PAGE)
    page.locator("form[action='/i18n/setlang/'] button", has_text="简体中文").evaluate("button => button.click()")
    expect(page.get_by_role("heading", name="运行状况")).to_be_visible()


def test_the_page_asks_for_a_login(browser_page):
    browser_page.goto(PAGE)
    expect(browser_page.locator("input[name=password]")).to_be_visible()
