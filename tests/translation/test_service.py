"""The whole service: a worker that dies or a restart in the middle of a job, and a file far too large."""

import os
import re
import signal
import sqlite3
from contextlib import closing

import pytest

from tests.service import Service, wait_until
from tests.translation.conftest import PROMPT_TOKENS
from tests.translation.visitor import Page, Visitor, add_user, job_path

LINES = 320
SECONDS = 80.0
HUGE_BYTES = 200 * 10**6

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def visitor(translating: Service) -> Visitor:
    add_user(translating, "translator")
    visitor = Visitor(translating)
    assert visitor.log_in("translator").url == f"{translating.url}/"
    return visitor


def done_lines(service: Service) -> dict[int, str]:
    """When each line that is done was answered."""
    with closing(sqlite3.connect(service.var_dir / "db.sqlite3")) as database:
        query = "SELECT number, answered_at FROM inference_translationline WHERE status = 'done'"
        return dict(database.execute(query).fetchall())


def status(page: Page) -> str:
    return re.search(r'id="job-status">(\w+)<', page.text)[1]


def test_a_job_goes_on_when_its_worker_is_killed_and_translates_nothing_twice(translating, visitor):
    page = visitor.translate("\n".join(f"Line {number}" for number in range(LINES)).encode(), "lines.txt")
    path = job_path(page)
    wait_until(lambda: len(done_lines(translating)) > LINES // 10, SECONDS, "some lines are done")
    worker = translating.child("worker")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: translating.child("worker") not in (None, worker), 30, "there is another worker")
    before = done_lines(translating)
    assert LINES // 10 < len(before) < LINES
    wait_until(lambda: status(visitor.get(path)) == "done", SECONDS, "the job is done")
    after = done_lines(translating)
    assert len(after) == LINES
    assert {number: after[number] for number in before} == before
    assert len(visitor.get(f"{path}download/").text.splitlines()) == LINES


def test_a_job_goes_on_when_the_whole_service_is_restarted(tmp_path, tiny_checkpoint):
    lines = 4 * LINES  # while a service stops it goes on translating

    def start() -> Service:
        limits = {"MAX_NEW_TOKENS": "8", "MAX_PROMPT_TOKENS": str(PROMPT_TOKENS)}
        return Service(tmp_path, MODEL=str(tiny_checkpoint), SERVE_CELERY="true", **limits)

    service = start()
    try:
        service.wait_until_healthy()
        add_user(service, "translator")
        visitor = Visitor(service)
        visitor.log_in("translator")
        path = job_path(visitor.translate("\n".join(f"Line {number}" for number in range(lines)).encode(), "lines.txt"))
        wait_until(lambda: len(done_lines(service)) > LINES // 10, SECONDS, "some lines are done")
    finally:
        service.stop()
    before = done_lines(service)
    assert LINES // 10 < len(before) < lines
    service = start()
    try:
        service.wait_until_healthy()
        visitor = Visitor(service)
        visitor.log_in("translator")
        wait_until(lambda: status(visitor.get(path)) == "done", SECONDS, "the job is done")
        after = done_lines(service)
    finally:
        service.stop()
    assert len(after) == lines and {number: after[number] for number in before} == before


def test_a_file_of_200_mb_is_refused_and_nothing_else_is_affected(translating, visitor, tmp_path):
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)
    with path.open("rb") as file:
        page = visitor.translate(file, "huge.txt")
    assert page.status == 413 and "10 MB together" in page.text
    assert visitor.get("/translate/").status == 200
