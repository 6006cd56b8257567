"""What may go wrong around a run, and must not cost what it measured."""

import os
import signal
import threading

import pytest
from django.db import OperationalError

from benchmarks import stopping, storage, tasks, watching
from benchmarks.actions import cancel_run
from benchmarks.loadgen import results
from benchmarks.models import Run, Status
from benchmarks.processes import execute
from benchmarks.run_files import read_progress
from benchmarks.storage import load_result
from tests.benchmarks.executing import (
    PATIENCE,
    be_silent,
    claimed,
    executing,
    mock_scenario,
    out_of_reach,
    some_done,
    wait_for,
)
from tests.benchmarks.results import make_result
from tests.benchmarks.rows import make_scenario, queue
from tests.loadgen.mock_server import Script, Step, script_body
from tests.service import is_running, wait_until

# The command runs in a process of its own, and runs in threads: no transaction may hide rows from them.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


def test_a_run_with_warm_ups_is_stored_with_them(mock):
    run = claimed(mock_scenario(mock, num_prompts=4, num_warmups=3))
    execute(run, threading.Event())
    assert (run.status, run.error) == (Status.DONE, "")
    phases = dict(run.records.order_by("index").values_list("index", "phase"))
    assert phases == {-3: "warmup", -2: "warmup", -1: "warmup", **dict.fromkeys(range(4), "measure")}
    assert run.summary["requests"]["warmup"] == 3
    assert load_result(run.pk).records[0].index == -3


def test_the_tokens_of_a_second_are_kept_with_their_fractions(mock):
    """Five tokens in two chunks of unknown size: half of them came with each."""
    event = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 5}}\n\n'
    script = Script(steps=[Step(write=event), Step(wait=1.0, write=event), Step(write=f"{usage}data: [DONE]\n\n")])
    run = claimed(mock_scenario(mock, num_prompts=1, extra_body=script_body(script)))
    execute(run, threading.Event())
    assert run.status == Status.DONE
    assert [tokens for tokens in run.buckets.values_list("tokens", flat=True) if tokens] == [2.5, 2.5]


def test_the_database_may_fail_for_a_while(mock, caplog):
    run = claimed(mock_scenario(mock, num_prompts=200))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        with out_of_reach("benchmarks_run"):
            wait_until(lambda: "goes on, though the database fails" in caplog.text, PATIENCE, "a heartbeat has failed")
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert (run.status, run.error) == (Status.DONE, "")
    assert run.summary["requests"]["completed"] == 200


def test_a_run_whose_row_is_out_of_reach_for_too_long_keeps_what_it_measured(mock, monkeypatch):
    run = claimed(mock_scenario(mock))
    monkeypatch.setattr(watching, "LOST_SECONDS", 2.0)
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        with out_of_reach("benchmarks_run"):
            wait_until(run.file("result").exists, PATIENCE, "the command has ended with what it has")
            wait_until(lambda: not is_running(run.pid), PATIENCE, "the command is gone")
    be_silent(run)
    tasks.tend_runs()
    run.refresh_from_db()
    assert run.status == Status.LOST
    assert 2 <= run.summary["requests"]["completed"] < 600
    assert not list(run.file("result").parent.glob(f"{run.key}*"))


def test_a_command_that_reads_what_it_has_captured_is_waited_for(mock, monkeypatch):
    monkeypatch.setattr(stopping, "STOP_SECONDS", 1.0)  # of reading, which takes several
    monkeypatch.setattr(stopping, "LEAST_SHARE", 0.02)  # other tests want the processors too
    event = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    script = Script(steps=[Step(write=1500 * event), Step(write="data: [DONE]\n\n")])
    run = claimed(mock_scenario(mock, num_prompts=3000, request_rate=60, extra_body=script_body(script)))
    with executing(run, threading.Event()):
        wait_for(run, lambda run: run.progress.get("done", 0) >= 250, "there is much to read")
        cancel_run(run)
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert run.status == Status.CANCELLED
    assert run.summary["requests"]["completed"] >= 250


def test_a_command_that_hangs_is_killed(mock, monkeypatch):
    monkeypatch.setattr(stopping, "STOP_SECONDS", 1.0)
    run = claimed(mock_scenario(mock))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        os.kill(run.pid, signal.SIGSTOP)
        cancel_run(run)
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert run.status == Status.CANCELLED
    assert not run.summary
    assert not is_running(run.pid)


def test_a_command_is_interrupted_only_once_whoever_asks(mock):
    """A supervisor may die after it has asked, and whoever finds the run must not end the command a second time."""
    run = claimed(mock_scenario(mock))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        for _ in range(3):
            stopping.interrupt(run, run.pid)
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert (run.status, run.error) == (Status.CANCELLED, "its command was interrupted")
    assert run.summary["requests"]["completed"] >= 2


def test_a_result_is_stored_under_a_heartbeat(monkeypatch):
    """Between two batches the row says that its supervisor is there, and another one's hands are bound."""
    monkeypatch.setattr(storage, "BATCH_ROWS", 5)
    monkeypatch.setattr(watching, "HEARTBEAT_SECONDS", 0.05)
    run = claimed(make_scenario())
    before = []

    def wait_for_a_beat() -> None:
        before.append(Run.objects.get(pk=run.pk).heartbeat)
        wait_until(lambda: Run.objects.get(pk=run.pk).heartbeat > before[-1], PATIENCE, "there was a heartbeat")

    with watching.beating(run):
        storage.store_result(make_result(run.key, requests=20), run, before_batch=wait_for_a_beat)
    assert len(before) > 4
    run.refresh_from_db()
    assert run.summary and run.records.count() == 21


def test_what_was_stored_in_part_does_not_count_as_measured(monkeypatch):
    monkeypatch.setattr(storage, "BATCH_ROWS", 5)
    run, asked = claimed(make_scenario()), []

    def is_taken_over() -> None:
        asked.append(True)
        if len(asked) == 3:
            raise watching.NotOurs(run)

    with pytest.raises(watching.NotOurs):
        storage.store_result(make_result(run.key), run, before_batch=is_taken_over)
    run.refresh_from_db()
    assert (run.records.count(), run.summary, run.requests) == (10, {}, None)
    storage.store_result(make_result(run.key), run)  # as whoever has taken it over does
    assert run.records.count() == 21


def test_nobody_stores_a_run_that_another_has_taken_over(mock):
    run = claimed(mock_scenario(mock))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        be_silent(run)
        tasks.tend_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the process that supervised it died")
    assert run.records.count() == run.summary["requests"]["total"]


def left_by_a_dead_worker() -> Run:
    """A run whose command has measured something, and whose supervisor was silent for too long."""
    run = claimed(make_scenario())
    results.save(make_result(run.key), run.file("result"))
    be_silent(run)
    return run


def test_what_a_lost_run_measured_is_stored_though_the_database_fails_once_more(monkeypatch):
    run, store = left_by_a_dead_worker(), storage.store_result
    failures = [OperationalError("the database is away")]

    def store_result(*args, **kwargs):
        if failures:
            raise failures.pop()
        return store(*args, **kwargs)

    monkeypatch.setattr(storage, "store_result", store_result)
    with pytest.raises(OperationalError):
        tasks.tend_runs()
    run.refresh_from_db()
    assert run.is_open and run.file("result").exists()

    be_silent(run)
    tasks.tend_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the process that supervised it died")
    assert run.summary and run.records.count() == 21
    assert not list(run.file("result").parent.glob(f"{run.key}*"))


def test_a_lost_run_is_over_though_what_it_left_cannot_be_stored(monkeypatch, caplog):
    run = left_by_a_dead_worker()

    def store_result(*args, **kwargs):
        raise ValueError("nonsense")

    monkeypatch.setattr(storage, "store_result", store_result)
    tasks.tend_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the process that supervised it died")
    assert f"what {run} measured could not be stored" in caplog.text


def test_only_the_end_of_the_progress_is_read():
    run = queue(make_scenario())[0]
    assert read_progress(run) == {}
    path = run.file("progress")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.seek(10**12)  # as much as no machine could read, and takes no room
            file.write(b'\n{"event": "progress", "done": 1}\n{"event": "progress", "done": 2}\n{"event": "prog')
        assert read_progress(run)["done"] == 2
    finally:
        path.unlink()
