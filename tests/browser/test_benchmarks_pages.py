"""The pages of the benchmarks in a real browser: a run from the click to its figures, live; cancel; comparison."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect, sync_playwright

from rwkvsite.env import BASE_DIR
from tests.browser.test_operations_page import PASSWORD, log_in
from tests.browser.visits import CHROMIUM, LEFT_BEHIND, OPTIONS
from tests.service import wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),  # each waits for several runs
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs a browser at {CHROMIUM}"),
]
PATIENCE = 60_000.0  # ms

ROWS = """
import json, sys
from django.contrib.auth.models import User
from benchmarks.models import GateRule, Scenario, Target
wanted = json.loads(sys.stdin.read())
User.objects.create_superuser("bencher", password=wanted["password"])
target = Target.objects.create(name="this service", base_url=wanted["url"])
small = {"random_input_len": 16, "random_output_len": 8}
short = Scenario.objects.create(
    name="short", target=target, profile={**small, "num_prompts": 40, "request_rate": 20}, slos={"ttft": 2000}
)
GateRule.objects.create(scenario=short, metric="ttft.median", limit=2000)
Scenario.objects.create(name="long", target=target, profile={**small, "num_prompts": 5000, "request_rate": 4})
Scenario.objects.create(
    name="sweep", target=target, profile={**small, "num_prompts": 24}, sweep_option="request_rate",
    sweep_values=[8, 16, 32], slos={"ttft": 2000},
)
"""


@pytest.fixture(scope="module", autouse=True)
def rows(service) -> None:
    """Scenarios of the service itself, and a user of the admin."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir)}
    command = [sys.executable, str(BASE_DIR / "manage.py"), "shell", "--no-imports", "-c", ROWS]
    given = json.dumps({"password": PASSWORD, "url": service.url})
    subprocess.run(command, env=environment, input=given, text=True, check=True, capture_output=True)


@pytest.fixture
def page(service):
    """A page of a logged-in user; at the end nothing went wrong in it, and it asked no other host for anything."""
    complaints: list[str] = []
    hosts: set[str] = set()

    def check_console(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(LEFT_BEHIND):
            complaints.append(message.text)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=OPTIONS)
        page = browser.new_page(viewport={"width": 1360, "height": 1000})
        page.set_default_timeout(PATIENCE)
        page.on("response", lambda response: complaints.append(response.url) if response.status >= 400 else None)
        page.on("console", check_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        try:
            log_in(page, service.url, "bencher")
            yield page
        finally:
            browser.close()
    assert complaints == []
    assert {host for host in hosts if host} == {urlsplit(service.url).netloc}


def start(page: Page, url: str, scenario: str) -> None:
    page.goto(f"{url}/admin/benchmarks/scenario/")
    page.get_by_role("link", name=scenario, exact=True).click()
    page.get_by_role("button", name="Run now").press("Enter")


def shoot(page: Page, name: str, height: int = 1200) -> None:
    """A picture of the page's first `height` pixels, in light and dark, where SCREENSHOTS names a folder."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.set_viewport_size({"width": 1360, "height": height})
        page.evaluate("window.scrollTo(0, 0)")
        for theme in ("light", "dark"):
            page.evaluate("dark => document.documentElement.classList.toggle('dark', dark)", theme == "dark")
            page.screenshot(path=str(Path(folder) / f"{name}-{theme}.png"))
        page.set_viewport_size({"width": 1360, "height": 1000})


def test_a_run_is_watched_from_its_start_to_its_figures_and_compared(service, page):
    runs = []
    for _ in range(2):
        start(page, service.url, "short")
        expect(page.locator("#live")).to_be_visible()
        expect(page.locator("#run-status")).to_have_text("done", timeout=PATIENCE)  # the page reloads by itself
        expect(page.get_by_text("40 of 40")).to_be_visible()
        expect(page.locator("figure svg").first).to_be_visible()
        runs.append(page.url)
    page.get_by_role("link", name="slowest").click()
    expect(page.get_by_role("link", name="slowest")).to_have_attribute("aria-current", "true")
    shoot(page, "benchmark-run", 4800)
    page.locator("figure details summary").first.click()
    expect(page.locator("figure table").first).to_be_visible()

    page.goto(f"{service.url}/admin/benchmarks/run/?q=short")
    shoot(page, "benchmark-runs")
    numbers = [url.rstrip("/").split("/")[-2] for url in runs]
    page.goto(f"{service.url}/admin/benchmarks/run/compare/?run={numbers[0]}&run={numbers[1]}")
    expect(page.get_by_role("heading", name="Comparison")).to_be_visible()
    expect(page.get_by_text("All options are equal.")).to_be_visible()
    expect(page.locator("figure svg")).to_have_count(3)
    shoot(page, "benchmark-comparison", 1450)
    page.goto(f"{service.url}/admin/benchmarks/run/trends/")
    page.get_by_label("Scenario").select_option("short")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("figure svg")).to_be_visible()
    shoot(page, "benchmark-trend")


def test_a_long_run_shows_live_figures_and_is_cancelled(service, page):
    start(page, service.url, "long")
    expect(page.locator("#live table")).to_be_visible(timeout=PATIENCE)
    shoot(page, "benchmark-live")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#run-status")).to_have_text("cancelled", timeout=PATIENCE)
    expect(page.get_by_text("of 5,000")).to_have_count(0)  # only what was sent counts
    expect(page.locator("figure svg").first).to_be_visible()


def test_a_sweep_draws_its_curve(service, page):
    start(page, service.url, "sweep")
    done = page.get_by_text("done", exact=True)

    def are_done() -> bool:
        page.goto(f"{service.url}/admin/benchmarks/run/?q=sweep")
        return done.count() == 3

    wait_until(are_done, 3 * PATIENCE / 1000, "the three runs of the sweep are done")
    page.get_by_role("link", name="run-").first.click()
    page.get_by_role("link", name="Sweep", exact=True).click()
    expect(page.locator("figure svg")).to_have_count(4)
    shoot(page, "benchmark-sweep", 1400)
