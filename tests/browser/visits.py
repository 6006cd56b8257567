"""What tests of pages share: a watched page, accessibility, and screenshots."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
# What htmx logs as an error of a request that was under way when its page was left, which is none.
LEFT_BEHIND = ("htmx:afterRequest", "htmx:sendAbort")
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page in a context of its own, whose relative URLs are those of `url`. `options` are Playwright's.

    At its end the page must have logged no error, had no answer of status 400 or more, and asked no other
    host for anything. A test that causes one on purpose takes it out of `page.complaints`.
    """
    context = browser.new_context(base_url=url, **{"viewport": DESKTOP, "locale": "en-US", **options})
    page = context.new_page()
    page.set_default_timeout(40_000)
    complaints: list[str] = []
    page.complaints = complaints
    own = urlsplit(url).netloc

    def check_request(request: Any) -> None:
        host = urlsplit(request.url).netloc
        if host and host != own:
            complaints.append(f"a request to {request.url}")

    def check_response(response: Any) -> None:
        if response.status >= 400:
            complaints.append(f"{response.status} for {response.url}")

    def check_console(message: Any) -> None:
        # An answer of status 400 or more is logged as well; `check_response` has it with its address.
        known = ("Failed to load resource", *LEFT_BEHIND)
        if message.type == "error" and not message.text.startswith(known):
            complaints.append(message.text)

    page.on("request", check_request)
    page.on("response", check_response)
    page.on("console", check_console)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
        assert complaints == [], "\n".join(complaints)
    finally:
        context.close()


def assert_accessible(page: Page) -> None:
    """No violation that axe-core calls serious or critical, on the page as it is now."""
    violations = Axe().run(page).response["violations"]
    found = [
        f"{violation['id']}: {node['html'][:200]}: {node.get('failureSummary')}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    assert not found, "\n".join(found)


def screenshot(page: Page, name: str, *, whole: bool = True) -> None:
    """Save the page, or what is seen of it, as a picture in the folder that SCREENSHOTS names, if it does."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=whole)
