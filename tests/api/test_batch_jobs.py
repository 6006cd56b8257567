"""Jobs of batches: the check of their input, the lease that keeps them whole, and the admin."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone

from inference.batches import lines, tasks
from inference.batches.lines import check_input, read_lines
from inference.batches.models import BatchJob, BatchLine, LeaseLost, Status, StoredFile
from tests.api.batch_input import ENDPOINT, jsonl, line


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (b"[]", "invalid_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"{}", "missing_required_parameter", "custom_id"),
        (jsonl({**line("a"), "custom_id": 5}), "invalid_line", "custom_id"),
        (jsonl(line("")), "invalid_line", "custom_id"),
        (jsonl({**line("a"), "method": "GET\0"}), "invalid_line", "method"),
        (jsonl(line("a", "/v1/chat/completions")), "invalid_url", "url"),
        (jsonl({**line("a"), "body": "text"}), "invalid_body", "body"),
        (jsonl(line("a", stream=True)), "invalid_body", "body.stream"),
        (jsonl(line("a"), line("a")), "duplicate_custom_id", "custom_id"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"n": NaN}}',
            "invalid_json_line",
            None,
        ),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": %b}' % (b'{"a":' * 100_000),
            "invalid_json_line",
            None,
        ),
    ],
)
def test_what_an_input_is_refused_for(tmp_path, content, code, param):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    (error,) = check_input(path, ENDPOINT).errors
    assert (error.code, error.param) == (code, param)
    assert "\0" not in error.message


def test_an_input_is_bounded(tmp_path, monkeypatch, change_settings):
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl(line("a"), line("b"), line("c")))
    assert check_input(path, ENDPOINT).total == 3
    monkeypatch.setattr(lines, "MAX_LINES", 2)
    (error,) = check_input(path, ENDPOINT).errors
    assert (error.code, error.line) == ("too_many_lines", 3)
    change_settings(max_body_bytes=60)
    assert max(len(text) for _, text in read_lines(path)) == 61
    assert check_input(path, ENDPOINT).errors[0].code == "line_too_long"


# -- the lease -------------------------------------------------------------------------------------


@pytest.fixture
def job(db) -> BatchJob:
    file = StoredFile.objects.create(owner="me", purpose="batch", filename="in.jsonl", bytes=1)
    return BatchJob.objects.create(
        owner="me", endpoint=ENDPOINT, completion_window="24h", input_file=file, expires_at=timezone.now(), total=2
    )


def let_the_lease_lapse(job: BatchJob) -> None:
    BatchJob.objects.filter(pk=job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))


def test_a_job_is_claimed_once_until_its_runner_is_silent(job):
    first = BatchJob.objects.claim(job.key)
    assert first
    assert BatchJob.objects.claim(job.key) is None  # the same message, delivered again
    let_the_lease_lapse(job)
    first.write()
    assert BatchJob.objects.claim(job.key) is None  # a sign of life
    let_the_lease_lapse(job)
    second = BatchJob.objects.claim(job.key)
    with pytest.raises(LeaseLost):
        first.write(completed=1)
    first.release()  # of no effect
    assert BatchJob.objects.claim(job.key) is None
    second.release()
    assert BatchJob.objects.claim(job.key)
    BatchJob.objects.update(status=Status.COMPLETED, lease="")
    assert BatchJob.objects.claim(job.key) is None


def test_a_lease_from_before_the_clock_was_set_back_is_void(job):
    first = BatchJob.objects.claim(job.key)
    BatchJob.objects.update(lease_until=timezone.now() + timedelta(hours=1))
    assert not BatchJob.objects.leased()  # it keeps no other job from its turn
    assert BatchJob.objects.claim(job.key)
    with pytest.raises(LeaseLost):
        first.write()


def test_a_runner_does_not_overwrite_a_cancellation(job):
    runner = BatchJob.objects.claim(job.key)
    BatchJob.objects.update(status=Status.CANCELLING)
    assert not runner.write(Status.VALIDATING, status=Status.IN_PROGRESS, total=9)
    assert (runner.status, runner.total) == (Status.CANCELLING, 2)


def test_the_database_refuses_a_second_answer_and_impossible_counts(job):
    BatchLine.objects.create(batch=job, number=1, failed=False, answer="{}")
    for wrong in (
        lambda: BatchLine.objects.create(batch=job, number=1, failed=True, answer="{}"),
        lambda: BatchJob.objects.update(completed=2, failed=1),
        lambda: BatchJob.objects.update(status="lost"),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            wrong()


def test_the_schedule_resumes_what_nobody_runs(job, monkeypatch):
    queued = []
    monkeypatch.setattr(tasks.run_batch, "delay", queued.append)
    BatchJob.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    file = job.input_file
    other = BatchJob.objects.create(owner="me", endpoint=ENDPOINT, input_file=file, expires_at=job.expires_at)
    later = BatchJob.objects.create(
        owner="me", endpoint=ENDPOINT, input_file=file, expires_at=timezone.now() + timedelta(hours=1)
    )
    tasks.queue_batches()
    assert queued == [other.key, job.key]  # one that only has to be closed, and the oldest
    BatchJob.objects.claim(job.key)
    BatchJob.objects.claim(other.key)
    queued.clear()
    tasks.queue_batches()
    assert queued == []
    let_the_lease_lapse(job)
    tasks.queue_batches()
    assert queued == [job.key]
    BatchJob.objects.filter(pk=job.pk).update(status=Status.COMPLETED)
    tasks.queue_batches()
    assert queued == [job.key, later.key]


# -- the admin -------------------------------------------------------------------------------------


def test_the_list_in_the_admin_costs_the_same_for_any_number(
    admin_client, job, django_assert_max_num_queries, django_assert_num_queries
):
    BatchLine.objects.create(batch=job, number=1, failed=True, answer="the answer itself")
    for _ in range(30):
        BatchJob.objects.create(owner="me", endpoint=ENDPOINT, input_file=job.input_file, expires_at=timezone.now())
    with django_assert_max_num_queries(9) as queries:
        page = admin_client.get(reverse("admin:inference_batchjob_changelist")).text
    assert job.key in page
    assert "0 / 0 / 2" in page
    assert not any("inference_batchline" in query["sql"] for query in queries.captured_queries)


def test_the_page_of_a_job_shows_what_failed(admin_client, job):
    BatchLine.objects.create(batch=job, number=1, failed=True, answer='{"error": "<b>why</b>"}')
    BatchLine.objects.create(batch=job, number=2, failed=False, answer="a success")
    BatchJob.objects.update(errors=[{"code": "invalid_line", "message": "no <b>id", "param": None, "line": 7}])
    page = admin_client.get(reverse("admin:inference_batchjob_change", args=[job.pk])).text
    assert "&lt;b&gt;why" in page
    assert "line 7: invalid_line: no &lt;b&gt;id" in page
    assert "a success" not in page


def test_cancelling_in_the_admin(admin_client, job, redis_url):
    done = BatchJob.objects.create(
        owner="me", endpoint=ENDPOINT, input_file=job.input_file, expires_at=timezone.now(), status=Status.COMPLETED
    )
    answer = admin_client.post(
        reverse("admin:inference_batchjob_changelist"),
        {"action": "cancel", "_selected_action": [job.pk, done.pk]},
        follow=True,
    )
    assert f"{job.key} is cancelling" in answer.text
    assert f"{done.key}: a batch that is completed cannot be cancelled" in answer.text
    job.refresh_from_db()
    assert job.status == Status.CANCELLING
    assert job.cancelling_at
