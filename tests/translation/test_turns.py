"""Turns against a stand-in endpoint: lines and jobs that fail in ways of their own, and a file of many lines."""

import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf

import pytest
from django.utils import timezone

from inference.batches.sender import CONCURRENCY
from inference.translation import actions, runner, tasks
from inference.translation.files import write_file
from inference.translation.formats import FORMATS
from inference.translation.line_errors import KEY_REFUSED, UNEXPECTED
from inference.translation.models import LineStatus, Status, TranslationJob

NewJob = Callable[..., TranslationJob]
MANY_LINES = 5000


class Handler(BaseHTTPRequestHandler):
    """Answers a text in capitals, or `server.refusal`, which is a status, `server.refusals` times for each text."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        (text,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text_list"]
        self.server.asked[text] += 1
        refused = self.server.refusal and self.server.asked[text] <= self.server.refusals
        status = self.server.refusal if refused else 200
        reply = {"error": "refused"} if refused else {"translations": [{"text": text.upper()}]}
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.server.answered += 1  # first: who reads the answer may look at once
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: thousands of lines are asked for."""


class Endpoint(ThreadingHTTPServer):
    request_queue_size = CONCURRENCY
    refusal = 0
    refusals = inf
    answered = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = Counter[str]()


@pytest.fixture(autouse=True)
def endpoint(settings, redis_url: str, transactional_db: None) -> Iterator[Endpoint]:
    with Endpoint() as server:
        settings.RWKV = dataclasses.replace(settings.RWKV, port=server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def take_turn(job: TranslationJob) -> TranslationJob:
    tasks.run_translation(job.key)
    job.refresh_from_db()
    return job


def results(job: TranslationJob) -> list[tuple[str, str]]:
    """Of each line: its translation or why there is none."""
    lines = job.lines.order_by("number").values_list("status", "translation", "error")
    return [(status, translation or error) for status, translation, error in lines]


def test_a_marker_of_any_length_in_a_text_is_text(new_job):
    own = "{{" + "9" * 10_000 + "}}"
    job = take_turn(new_job(f"a fox\n{own} fox", glossary="fox = F"))
    assert job.status == Status.COMPLETED
    assert results(job) == [("done", "A F"), ("done", f"{own} F")]


class FailsForBad:
    """What a format protects, with a fault."""

    def sub(self, replacement: str, text: str) -> str:
        return text

    def findall(self, text: str) -> list[str]:
        if text == "bad":
            raise RuntimeError("a fault in the format")
        return []


def test_a_line_that_raises_fails_alone_and_its_traceback_is_logged(new_job, monkeypatch, caplog):
    monkeypatch.setitem(FORMATS, "txt", dataclasses.replace(FORMATS["txt"], protected=FailsForBad()))
    job = take_turn(new_job("good\nbad\nfine"))
    assert (job.status, job.done, job.failed) == (Status.COMPLETED, 2, 1)
    assert results(job) == [("done", "GOOD"), ("failed", UNEXPECTED), ("done", "FINE")]
    assert "a fault in the format" in caplog.text and "Traceback" in caplog.text


def test_a_job_whose_turn_fails_waits_behind_the_others(new_job, caplog):
    failing, other = new_job("a"), new_job("b")
    TranslationJob.objects.filter(pk=failing.pk).update(glossary="= no glossary")
    assert TranslationJob.objects.waiting().first() == failing
    take_turn(failing)
    assert failing.status == Status.QUEUED and failing.lease == ""
    assert "BadGlossary" in caplog.text
    assert TranslationJob.objects.waiting().first() == other
    assert take_turn(other).status == Status.COMPLETED
    assert actions.cancel(failing)


def test_a_lease_from_before_the_clock_was_set_back_is_void(new_job):
    job = new_job("a")
    TranslationJob.objects.claim(job.key)
    TranslationJob.objects.update(lease_until=timezone.now() + timedelta(hours=1))
    assert not TranslationJob.objects.leased()  # it keeps no other job from its turn
    assert results(take_turn(job)) == [("done", "A")]


def test_a_refused_key_is_told_at_every_line_and_one_may_try_again(new_job, endpoint):
    endpoint.refusal = 401
    job = take_turn(new_job("\n".join("a" * (CONCURRENCY + 2))))
    assert (job.status, job.failed, job.done) == (Status.COMPLETED, job.total, 0)
    assert set(results(job)) == {("failed", KEY_REFUSED)}
    endpoint.refusal = 0
    assert actions.retry_rest(job)
    assert (take_turn(job).status, job.failed, job.done) == (Status.COMPLETED, 0, job.total)


def test_a_key_that_is_refused_once_fails_no_line(new_job, endpoint):
    endpoint.refusal, endpoint.refusals = 401, 1
    job = take_turn(new_job("a\nb\nc"))
    assert (job.status, results(job)) == (Status.COMPLETED, [("done", "A"), ("done", "B"), ("done", "C")])


def test_a_file_of_5000_lines_is_translated_whole_and_each_line_once(new_job, endpoint):
    job = new_job("\n".join(f"line {number}" for number in range(MANY_LINES)))
    turns = 0
    while TranslationJob.objects.open().exists():
        take_turn(job)
        turns += 1
    assert (job.status, job.done, job.failed) == (Status.COMPLETED, MANY_LINES, 0)
    assert turns > MANY_LINES // runner.TURN_LINES  # other jobs had theirs in between
    assert endpoint.answered == MANY_LINES
    assert not job.lines.exclude(status=LineStatus.DONE).exists()
    assert write_file(job).decode().splitlines() == [f"LINE {number}" for number in range(MANY_LINES)]
