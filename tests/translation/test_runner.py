"""Jobs on a real service: the API's own answers, one bad line, cancelling, trying again, and the lease."""

import json
import threading
import urllib.request
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from inference.batches.models import LeaseLost
from inference.translation import actions, runner
from inference.translation.files import write_file
from inference.translation.models import LineStatus, Status, TranslationJob
from tests.service import Service
from tests.translation.conftest import PROMPT_TOKENS

NewJob = Callable[..., TranslationJob]
TOO_LONG = "word " * (PROMPT_TOKENS + 1)


@pytest.fixture(autouse=True)
def service(here: Service) -> Service:
    return here


def run(job: TranslationJob) -> TranslationJob:
    """The job's next turn, as a worker does it."""
    claimed = TranslationJob.objects.claim(job.key)
    runner.run(claimed, threading.Event())
    claimed.release()
    job.refresh_from_db()
    return job


def ask_api(service: Service, *texts: str, **fields: object) -> list[str]:
    body = {"source_lang": "en", "target_lang": "zh", "text_list": texts, **fields}
    request = urllib.request.Request(f"{service.url}/translate/v1/batch-translate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        return [item["text"] for item in json.load(response)["translations"]]


def statuses(job: TranslationJob) -> list[str]:
    return list(job.lines.order_by("number").values_list("status", flat=True))


def test_lines_become_what_the_api_answers(service, new_job):
    texts = [f"Line number {number}" for number in range(5)]
    job = run(new_job("\n".join(texts)))
    assert (job.status, job.done, job.failed) == (Status.COMPLETED, 5, 0)
    answers = ask_api(service, *texts)
    assert list(job.lines.order_by("number").values_list("translation", flat=True)) == answers
    assert [line.split() for line in write_file(job).decode().split("\n")] == [answer.split() for answer in answers]


def test_glossary_terms_and_protected_parts_are_in_the_translation(service, new_job):
    text = "The **fox** at https://example.org/ is RWKV"
    job = run(new_job(text, name="md", glossary="fox = 狐狸\nRWKV"))
    (translation,) = job.lines.values_list("translation", flat=True)
    assert "狐狸" in translation and "RWKV" in translation and "https://example.org/" in translation
    assert "{{" not in translation
    (answer,) = ask_api(
        service, "The **{{1}}** at https://example.org/ is {{2}}", placeholders=["https://example.org/"]
    )
    assert translation == answer.replace("{{1}}", "狐狸").replace("{{2}}", "RWKV")


def test_a_line_of_terms_alone_is_what_the_glossary_says(new_job):
    job = run(new_job("fox, fox!", glossary="fox = 狐狸"))
    assert job.lines.get().translation == "狐狸, 狐狸!"


def test_a_line_that_fails_does_not_fail_the_job(new_job):
    job = run(new_job(f"good\n{TOO_LONG}\nfine"))
    assert (job.status, job.done, job.failed) == (Status.COMPLETED, 2, 1)
    assert statuses(job) == ["done", "failed", "done"]
    error = job.lines.get(number=2).error
    assert error.startswith(f"text_list: expected at most {PROMPT_TOKENS} tokens")
    assert TOO_LONG.strip() in write_file(job).decode()


def test_one_line_again_asks_for_that_line_alone(new_job):
    job = run(new_job(f"good\n{TOO_LONG}\nfine"))
    before = dict(job.lines.values_list("number", "answered_at"))
    assert actions.retry_line(job, 1)
    assert (job.status, job.done, job.failed, statuses(job)) == (Status.QUEUED, 1, 1, ["waiting", "failed", "done"])
    assert not actions.retry_line(job, 1) and not actions.retry_line(job, 4)
    run(job)
    assert (job.status, job.done, job.failed) == (Status.COMPLETED, 2, 1)
    after = dict(job.lines.values_list("number", "answered_at"))
    assert after[1] > before[1]
    assert (after[2], after[3]) == (before[2], before[3])


def test_a_cancelled_job_keeps_what_it_has_and_can_go_on(new_job, monkeypatch):
    monkeypatch.setattr(runner, "TURN_LINES", 2)
    job = run(new_job("a\nb\nc\nd"))
    assert (job.status, job.done) == (Status.QUEUED, 2)
    assert actions.cancel(job)
    assert (job.status, statuses(job)) == (Status.CANCELLED, ["done", "done", "skipped", "skipped"])
    assert not actions.cancel(job)
    assert TranslationJob.objects.claim(job.key) is None

    assert actions.retry_line(job, 4)
    run(job)
    assert (job.status, statuses(job)) == (Status.CANCELLED, ["done", "done", "skipped", "done"])
    assert actions.retry_rest(job)
    run(job)
    assert (job.status, job.done, statuses(job)) == (Status.COMPLETED, 4, ["done"] * 4)


def test_nothing_is_stored_for_a_job_that_is_cancelled_while_its_lines_are_away(new_job):
    job = TranslationJob.objects.claim(new_job("a\nb").key)
    actions.cancel(TranslationJob.objects.get(pk=job.pk))
    runner.run(job, threading.Event())
    job.refresh_from_db()
    assert (job.status, job.done, statuses(job)) == (Status.CANCELLED, 0, ["skipped", "skipped"])


def test_jobs_take_turns(new_job, monkeypatch):
    monkeypatch.setattr(runner, "TURN_LINES", 1)
    long, short = new_job("a\nb"), new_job("c")
    order = []
    while waiting := TranslationJob.objects.waiting().first():
        order.append(waiting.pk)
        run(waiting)
    assert order == [long.pk, short.pk, long.pk]
    assert TranslationJob.objects.filter(status=Status.COMPLETED).count() == 2


def test_only_one_runner_has_a_job_and_one_without_its_lease_stores_nothing(new_job):
    job = new_job("a")
    first = TranslationJob.objects.claim(job.key)
    assert TranslationJob.objects.claim(job.key) is None
    TranslationJob.objects.filter(pk=job.pk).update(lease_until=timezone.now())  # it was silent for too long
    second = TranslationJob.objects.claim(job.key)
    with pytest.raises(LeaseLost):
        runner.run(first, threading.Event())
    assert statuses(job) == [LineStatus.WAITING]
    runner.run(second, threading.Event())
    assert statuses(job) == [LineStatus.DONE]


def test_a_deleted_job_stops_its_runner(new_job):
    job = TranslationJob.objects.claim(new_job("a").key)
    actions.delete(TranslationJob.objects.get(pk=job.pk))
    with pytest.raises(LeaseLost):
        runner.run(job, threading.Event())
    job.release()


def test_a_worker_that_is_told_to_stop_leaves_the_rest_to_the_next(new_job):
    job = TranslationJob.objects.claim(new_job("a\nb").key)
    stopping = threading.Event()
    stopping.set()
    runner.run(job, stopping)
    job.release()
    assert (job.status, statuses(job)) == (Status.RUNNING, ["waiting", "waiting"])
    assert run(job).status == Status.COMPLETED


def test_old_jobs_expire_when_they_are_over(new_job):
    over, waiting = run(new_job("a")), new_job("b")
    TranslationJob.objects.update(ended_at=timezone.now() - timedelta(days=31))
    assert actions.expire(0) == 0
    assert actions.expire(30) == 1
    assert list(TranslationJob.objects.values_list("pk", flat=True)) == [waiting.pk] != [over.pk]
