"""Fixtures for tests in a real browser.

`browser`       Chromium, started once for a module
`browser_page`  a page of the running service, in English, on a desktop. The test fails at its end if the page logged an
                error, got an answer of status 400 or more, or asked another host for anything; what a test causes on
                purpose it takes out of `browser_page.complaints`.

For another language, colour scheme, size or service: `visit(browser, url, locale="zh-CN", color_scheme="dark",
viewport=PHONE)` of `tests.browser.visits`, which also has `assert_accessible(page)` and `screenshot(page, name)`.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.visits import CHROMIUM, OPTIONS, visit
from tests.service import Service

expect.set_options(timeout=40_000)  # milliseconds: the machine may be busy with other tests


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Of a module, not of the session: while it runs, its event loop would be in the way of asynchronous tests.
    if not CHROMIUM.exists():
        pytest.skip(f"needs a browser at {CHROMIUM}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def browser_page(browser: Browser, service: Service) -> Iterator[Page]:
    with visit(browser, service.url) as page:
        yield page
