"""Sweeps and their runs in the database: queued, executed by the command, cancelled, resumed, lost, compared."""

import json
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from benchmarks import datafiles
from benchmarks.evals import tasks
from benchmarks.evals.actions import NotPossible, queue_sweep, resume_run
from benchmarks.evals.comparison import compare
from benchmarks.evals.datasets import sha256
from benchmarks.evals.models import EvalRun, EvalSchedule
from benchmarks.models.runs import LOST_SECONDS, Status
from tests.benchmarks.executing import twice_at_once
from tests.evals.conftest import right_at
from tests.evals.foreign import running_foreign

pytestmark = pytest.mark.usefixtures("transactional_db", "redis_url")


@pytest.fixture
def other():
    """A server that finds other tokens likely."""
    with running_foreign() as server:
        server.likes = 3
        yield server


def test_a_sweep_over_two_servers(sweep, foreign, other):
    sweep.entries = [{"label": "first"}, {"label": "second", "base_url": other.url, "options": {"seed": 0}}]
    sweep.full_clean()
    sweep.save()
    tasks.run_sweep(sweep.pk)
    assert [run.label for run in EvalRun.objects.order_by("pk")] == ["first", "second"]
    with pytest.raises(NotPossible, match="runs that are not over"):
        queue_sweep(sweep)
    tasks.execute_eval()
    tasks.execute_eval()
    tasks.execute_eval()  # nothing is left, and nothing happens

    first, second = EvalRun.objects.order_by("pk")
    for run, likes in ((first, 2), (second, 3)):
        assert (run.status, run.error, run.n, run.documents) == (Status.DONE, "", 40, 40)
        assert run.items.count() == 40
        assert run.items.filter(correct=True).count() == right_at(likes) == run.summary["correct"]
        assert run.acc == right_at(likes) / 40
        assert run.ppl == pytest.approx(run.summary["ppl"])  # PostgreSQL's JSON writes large numbers out
        assert run.ppl > 1
        assert (run.model, run.base_url) == ("foreign", (foreign if likes == 2 else other).url)
        assert run.summary["settings"]["prefix"] == 0
    assert sum(foreign.asked.values()) == 40

    found = compare(first, second)
    assert (found.common, found.differences) == (40, [])
    assert found.won - found.lost == right_at(3) - right_at(2)
    changed = set(first.items.filter(correct=True).values_list("doc", flat=True)) ^ set(
        second.items.filter(correct=True).values_list("doc", flat=True)
    )
    assert {flip.doc for flip in found.flips} == changed != set()
    assert found.mean_logprob_change == pytest.approx(0)


def test_a_sweep_that_is_started_twice_at_once_is_queued_once(sweep):
    raised = twice_at_once(lambda: queue_sweep(sweep), "benchmarks_evalrun")
    assert [type(error) for error in raised if error] == [NotPossible]
    assert EvalRun.objects.count() == 1


def test_a_run_whose_worker_died_is_lost_and_can_go_on(sweep):
    (run,) = queue_sweep(sweep)
    EvalRun.objects.claim_next()
    tasks.tend_evals()
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    EvalRun.objects.update(heartbeat=timezone.now() - timedelta(seconds=LOST_SECONDS + 1))
    tasks.tend_evals()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the worker that ran it died")
    resume_run(run)
    assert EvalRun.objects.claim_next() == run


def test_a_run_is_not_lost_while_its_worker_says_that_it_goes_on(sweep):
    (run,) = queue_sweep(sweep)
    worker = EvalRun.objects.claim_next()
    for away in (timedelta(seconds=-LOST_SECONDS - 1), timedelta(hours=1)):  # late, or before the clock was set back
        EvalRun.objects.update(heartbeat=timezone.now() + away)
        (silent,) = EvalRun.objects.silent()
        assert worker.beat()
        assert not silent.lose()
        run.refresh_from_db()
        assert run.status == Status.RUNNING


def test_one_run_at_a_time_for_a_server(sweep, other):
    sweep.entries = [{"label": "a"}, {"label": "b"}, {"label": "c", "base_url": other.url}]
    queue_sweep(sweep)
    assert [EvalRun.objects.claim_next().label for _ in range(2)] == ["a", "c"]
    assert EvalRun.objects.claim_next() is None


def test_a_failed_run_says_why(sweep, foreign):
    foreign.with_logprobs = False
    (run,) = queue_sweep(sweep)
    tasks.execute_eval()
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert run.error.startswith("the server gives no logprobs with echo")


def test_a_server_that_is_no_longer_allowed_is_not_asked(sweep, foreign):
    (run,) = queue_sweep(sweep)
    EvalRun.objects.update(base_url="http://192.0.2.1")
    tasks.execute_eval()
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert "192.0.2.1 is neither on loopback nor in BENCHMARK_TARGETS" in run.error


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("entries", [{"base_url": "http://192.0.2.1"}], "neither on loopback"),
        ("entries", [{"nonsense": 1}], "unknown field"),
        ("entries", [{"load": True}], "load needs a model"),
        ("entries", [{"options": {"prefix": "x"}}], "Expected `int | null`"),
        ("options", {"nonsense": 1}, "must be an object with some of prompts, prefix"),
        ("data", "../../etc/passwd", "leads out of the folder"),
        ("data", "", "lambada needs a file"),
        ("sha256", "4aa8", "neither 64 hexadecimal digits nor one of lambada-openai"),
        ("batch", 0, "greater than or equal to 1"),
    ],
)
def test_a_bad_sweep_is_refused_by_its_field(sweep, field, value, message):
    setattr(sweep, field, value)
    with pytest.raises(ValidationError) as refused:
        sweep.full_clean()
    assert message in refused.value.message_dict[field][0]


def test_batch_and_checksum_are_those_of_the_command(sweep, foreign):
    sweep.batch, sweep.sha256 = 10, sha256(datafiles.folder() / sweep.data)
    sweep.full_clean()
    queue_sweep(sweep)
    tasks.execute_eval()
    assert EvalRun.objects.get().status == Status.DONE
    assert foreign.requests == 4

    sweep.sha256 = "0" * 64
    (refused,) = queue_sweep(sweep)
    tasks.execute_eval()
    refused.refresh_from_db()
    assert refused.status == Status.FAILED
    assert f"not {'0' * 64}" in refused.error


def test_the_data_type_of_the_engine_is_kept(sweep, foreign):
    for dtype in ("float16, float32 states", "very long " * 20):
        foreign.dtype = dtype
        (run,) = queue_sweep(sweep)
        tasks.execute_eval()
        run.refresh_from_db()
        assert (run.status, run.backend, run.dtype) == (Status.DONE, "torch", dtype[:60])


def test_a_schedule_is_a_periodic_task_that_queues_the_sweep(sweep):
    hourly = IntervalSchedule.objects.create(every=1, period="hours")
    EvalSchedule.objects.create(name="every hour", sweep=sweep, interval=hourly)
    task = PeriodicTask.objects.get(name="every hour")
    assert task.task == tasks.run_sweep.name
    tasks.run_sweep(**json.loads(task.kwargs))
    assert EvalRun.objects.get().sweep == sweep
