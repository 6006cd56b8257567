"""The API's documentation and the console's other pages in a real browser: what they need comes from this server.

That no page asks another host, and none breaks its own policy, is checked by `visit` at the end of each.
"""

import os
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from rwkvsite.env import BASE_DIR
from tests.service import Service
from tests.translation.visitor import PASSWORD

pytestmark = pytest.mark.browser


def test_a_route_is_tried_out_in_place(browser_page: Page):
    page = browser_page
    page.goto("/docs/")
    route = page.locator("#operations-tag-v1, .opblock-tag-section").first
    expect(route).to_be_visible()
    health = page.locator(".opblock-get", has_text="/health").first
    health.locator(".opblock-summary-control").click()
    health.get_by_role("button", name="Try it out").click()
    health.get_by_role("button", name="Execute").click()
    expect(health.locator(".live-responses-table .response-col_status").last).to_contain_text("200")


@pytest.fixture(scope="module")
def operator(service: Service) -> str:
    """A user of the admin."""
    own = {"VAR_DIR": str(service.var_dir), "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", **own}
    command = [sys.executable, str(BASE_DIR / "manage.py"), "createsuperuser", "--noinput"]
    subprocess.run([*command, "--username", "reader", "--email", "r@example.org"], env=environment, check=True)
    return "reader"


CONSOLE = (
    "/admin/",
    "/admin/inference/apikey/",
    "/admin/inference/apikey/add/",
    "/admin/inference/translationjob/",
    "/admin/rwkv_sessions/session/",
    "/admin/rwkv_sessions/session/levels/",
    "/admin/auth/user/add/",
    "/admin/django_celery_beat/periodictask/add/",
    "/admin/benchmarks/run/",
)


def test_pages_of_the_console_keep_their_policy(browser_page: Page, operator: str):
    page = browser_page
    page.goto("/admin/")
    page.fill("input[name=username]", operator)
    page.fill("input[name=password]", PASSWORD)
    page.press("input[name=password]", "Enter")
    page.wait_for_url("**/admin/")
    for path in CONSOLE:
        page.goto(path)
        expect(page.locator("#main, main, #content").first).to_be_visible()
