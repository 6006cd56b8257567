"""How runs end, with the real command."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection

from benchmarks import tasks
from benchmarks.actions import cancel_run
from benchmarks.models import Scenario, Status, Target
from benchmarks.processes import execute
from rwkvsite.env import BASE_DIR
from tests.benchmarks.executing import PATIENCE, be_silent, claimed, executing, mock_scenario, some_done, wait_for
from tests.benchmarks.rows import make_scenario, queue
from tests.loadgen.mock_server import running_mock_server
from tests.service import is_running

# The command runs in a process of its own, and runs in threads: no transaction may hide rows from them.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


def test_a_cancelled_run_keeps_what_it_measured(mock):
    run = claimed(mock_scenario(mock))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        cancel_run(run)
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert (run.status, run.error) == (Status.CANCELLED, "")
    assert 2 <= run.summary["requests"]["completed"] < 600
    assert run.records.count() == run.summary["requests"]["total"]
    assert not is_running(run.pid)
    assert run.heartbeat < run.finished + timedelta(seconds=1)  # it was never to be silent for long


def test_a_run_whose_worker_stops_is_lost_and_keeps_what_it_measured(mock):
    run, stopping = claimed(mock_scenario(mock)), threading.Event()
    with executing(run, stopping):
        wait_for(run, some_done, "requests are done")
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the worker was stopped")
    assert run.records.exists()


def test_a_run_has_a_time_limit(mock):
    scenario = mock_scenario(mock)
    Scenario.objects.update(max_seconds=1)
    scenario.refresh_from_db()
    run = claimed(scenario)
    execute(run, threading.Event())
    assert (run.status, run.error) == (Status.FAILED, "stopped after 1 s, its limit")


def test_the_clock_on_the_wall_does_not_end_a_run(mock):
    run = claimed(mock_scenario(mock, num_prompts=2))
    run.started -= timedelta(days=1)  # as when the clock was set forward
    execute(run, threading.Event())
    assert (run.status, run.error) == (Status.DONE, "")


def test_a_target_that_dies_midway_fails_the_run_which_keeps_what_it_measured():
    dying = running_mock_server()
    run = claimed(mock_scenario(dying.__enter__(), name="dying", num_prompts=200))
    with executing(run, threading.Event()):
        try:
            wait_for(run, some_done, "requests are done")
        finally:
            dying.__exit__(None, None, None)
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert run.status == Status.FAILED
    assert "the last 5 requests failed, most with connect" in run.error
    assert run.summary["requests"]["completed"] >= 2
    assert sum(run.summary["errors"].values()) == run.failed


def test_a_worker_that_is_killed_leaves_a_lost_run_and_the_next_one_starts(mock, redis_url):
    run, next_run = queue(mock_scenario(mock))[0], queue(mock_scenario(mock, name="next", num_prompts=2))[0]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "rwkvsite.settings",
        "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
        "REDIS_URL": redis_url,
        "VAR_DIR": str(settings.RWKV.var_dir),
    }
    code = "from benchmarks.tasks import execute_run; execute_run()"
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", code], cwd=BASE_DIR, env=environment
    )
    try:
        wait_for(run, some_done, "requests are done")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE)
    tasks.tend_runs()
    run.refresh_from_db()
    assert run.status == Status.RUNNING  # its supervisor was there a moment ago

    be_silent(run)
    tasks.tend_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the process that supervised it died")
    assert run.summary["requests"]["completed"] >= 2
    assert not is_running(run.pid)

    tasks.execute_run()
    next_run.refresh_from_db()
    assert next_run.status == Status.DONE


def test_why_a_run_could_not_begin_is_in_its_row(monkeypatch):
    cases = {
        "gone": ({"base_url": "http://127.0.0.1:9"}, "connect"),
        "keyless": ({"base_url": "http://127.0.0.1:9", "api_key_variable": "BENCH_TEST_API_KEY"}, "BENCH_TEST_API_KEY"),
        "elsewhere": ({"base_url": "http://10.0.0.1"}, "neither on loopback nor in BENCHMARK_TARGETS"),
    }
    for name, (target, words) in cases.items():
        Target.objects.create(name=f"target of {name}", **target)
        run = claimed(make_scenario(name, profile={"num_prompts": 1}))
        execute(run, threading.Event())
        assert run.status == Status.FAILED
        assert words in run.error.lower() or words in run.error
        assert not list(run.file("result").parent.glob(f"{run.key}*"))
