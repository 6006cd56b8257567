"""Sweeps and their runs in the database: queued, executed by the command, cancelled, resumed, lost, compared."""

import json
import shutil
import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from benchmarks import datafiles
from benchmarks.evals import tasks
from benchmarks.evals.actions import NotPossible, cancel_run, queue_sweep, resume_run
from benchmarks.evals.comparison import compare
from benchmarks.evals.gating import judge
from benchmarks.evals.models import EvalRun, EvalSchedule, EvalSweep
from benchmarks.evals.process import execute
from benchmarks.models import GateRule, Target
from benchmarks.models.runs import LOST_SECONDS, Status
from inference.text.tokenizer import get_tokenizer
from tests.evals.conftest import WORDS
from tests.evals.foreign import running_foreign
from tests.service import wait_until

SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("transactional_db", "redis_url")


@pytest.fixture
def sweep(foreign, passages) -> EvalSweep:
    datafiles.folder().mkdir(parents=True, exist_ok=True)
    shutil.copy(passages, datafiles.folder() / "passages.jsonl")
    target = Target.objects.create(name="foreign", base_url=foreign.url)
    sweep = EvalSweep(name="nightly", task="lambada", target=target, data="passages.jsonl", concurrency=2)
    sweep.full_clean()
    sweep.save()
    return sweep


@pytest.fixture
def other():
    """A server that finds other tokens likely."""
    with running_foreign() as server:
        server.likes = 3
        yield server


def right_at(likes: int) -> int:
    """Documents that a foreign server gets right."""
    return 8 * sum(all(token % likes == 0 for token in get_tokenizer().encode(word)) for word in WORDS)


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
        assert run.ppl == run.summary["ppl"] > 1
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


def test_a_cancelled_run_keeps_its_items_and_can_go_on(sweep, foreign):
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    claimed = EvalRun.objects.claim_next()
    worker = threading.Thread(target=in_a_thread, args=(claimed, threading.Event()))
    worker.start()
    wait_until(lambda: run.items.count() == 16, SECONDS, "the first request's documents are stored")
    wait_until(lambda: EvalRun.objects.get(pk=run.pk).n == 16, SECONDS, "the row says so")
    run.refresh_from_db()
    assert run.documents == 40
    cancel_run(run)
    assert run.status == Status.RUNNING
    worker.join(SECONDS)
    run.refresh_from_db()
    assert (run.status, run.n, run.items.count()) == (Status.CANCELLED, 16, 16)
    assert run.summary["status"] == "failed" and run.acc is not None
    with pytest.raises(NotPossible, match="a run that is cancelled cannot be cancelled"):
        cancel_run(run)

    foreign.hold_after = None
    resume_run(run)
    assert run.status == Status.QUEUED
    tasks.execute_eval()
    run.refresh_from_db()
    assert (run.status, run.n, run.items.count()) == (Status.DONE, 40, 40)
    assert sum(foreign.asked.values()) == 40
    with pytest.raises(NotPossible, match="a run that is done cannot go on"):
        resume_run(run)


def test_a_run_whose_worker_stops_is_queued_again(sweep, foreign):
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    claimed, stopping = EvalRun.objects.claim_next(), threading.Event()
    worker = threading.Thread(target=in_a_thread, args=(claimed, stopping))
    worker.start()
    wait_until(lambda: run.items.count() == 16, SECONDS, "the first request's documents are stored")
    stopping.set()
    worker.join(SECONDS)
    run.refresh_from_db()
    assert run.status == Status.QUEUED


def in_a_thread(run: EvalRun, stopping: threading.Event) -> None:
    try:
        execute(run, stopping)
    finally:
        connection.close()


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
    ],
)
def test_a_bad_sweep_is_refused_by_its_field(sweep, field, value, message):
    setattr(sweep, field, value)
    with pytest.raises(ValidationError) as refused:
        sweep.full_clean()
    assert message in refused.value.message_dict[field][0]


def test_a_schedule_is_a_periodic_task_that_queues_the_sweep(sweep):
    hourly = IntervalSchedule.objects.create(every=1, period="hours")
    EvalSchedule.objects.create(name="every hour", sweep=sweep, interval=hourly)
    task = PeriodicTask.objects.get(name="every hour")
    assert task.task == tasks.run_sweep.name
    tasks.run_sweep(**json.loads(task.kwargs))
    assert EvalRun.objects.get().sweep == sweep


# -- rules -----------------------------------------------------------------------------------------


def scored(correct: int, *, series: str = "s", n: int = 40) -> EvalRun:
    """A done run that got the first documents right."""
    from benchmarks.evals.statistics import accuracy

    run = EvalRun.objects.create(task="lambada", series=series, base_url="http://127.0.0.1", status=Status.DONE)
    items = [run.items.model(run=run, doc=doc, correct=doc < correct) for doc in range(n)]
    run.items.bulk_create(items)
    run.summary = accuracy(items)
    run.acc = run.summary["acc"]
    run.save()
    return run


@pytest.mark.parametrize(
    ("limit", "outcome"), [(0.5, "pass"), (0.55, "warn"), (0.9, "fail")], ids=["kept", "within chance", "broken"]
)
def test_an_absolute_rule_minds_the_interval(limit, outcome):
    GateRule.objects.create(eval_task="lambada", metric="acc", comparison=">=", limit=limit)
    run = scored(20)
    judge(run)
    run.refresh_from_db()
    assert [gate["outcome"] for gate in run.gates] == [outcome]


@pytest.mark.parametrize(("correct", "outcome"), [(30, "pass"), (27, "warn"), (10, "fail")])
def test_a_relative_rule_minds_the_flips(correct, outcome):
    GateRule.objects.create(eval_task="lambada", metric="acc", comparison=">=", limit=-1, relative=True)
    scored(30)
    run = scored(correct)
    judge(run)
    run.refresh_from_db()
    assert [gate["outcome"] for gate in run.gates] == [outcome]


def test_a_rule_without_its_figure_or_baseline_is_not_comparable():
    GateRule.objects.create(eval_task="lambada", metric="ppl", comparison="<=", limit=5)
    GateRule.objects.create(eval_task="lambada", metric="acc", comparison=">=", limit=-1, relative=True)
    GateRule.objects.create(eval_task="mmlu", metric="acc", comparison=">=", limit=1)
    run = scored(20, series="")
    judge(run)
    run.refresh_from_db()
    assert [gate["outcome"] for gate in run.gates] == ["not comparable", "not comparable"]
