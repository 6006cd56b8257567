"""From the queue to a stored run, with the real command: how runs end, and that one way to start them is as good as
another.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection, connections
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule

from benchmarks import tasks
from benchmarks.actions import cancel_run
from benchmarks.loadgen import results
from benchmarks.models import GateRule, Run, Scenario, Schedule, Status, Target
from benchmarks.models.runs import LOST_SECONDS
from benchmarks.processes import execute
from benchmarks.storage import load_result
from rwkvsite.celery import app
from rwkvsite.env import BASE_DIR
from tests.benchmarks.rows import make_scenario, queue
from tests.loadgen.mock_server import Script, Step, running_mock_server, script_body
from tests.service import is_running, wait_until

# The command runs in a process of its own, and some runs in threads: no transaction may hide rows from them.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

PATIENCE = 60.0
SMALL = {
    "num_prompts": 20,
    "request_rate": 20,
    "random_input_len": 16,
    "random_output_len": 8,
    "random_range_ratio": 0.5,
}


def answer(seconds: float) -> dict[str, object]:
    """Four tokens, each after a wait of so long."""
    event = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    steps = [Step(wait=seconds / 4, write=event) for _ in range(4)]
    return script_body(Script(steps=[*steps, Step(write="data: [DONE]\n\n")]))


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    with running_mock_server() as url:
        yield url


def mock_scenario(url: str, seconds: float = 0.02, name: str = "mock", **profile) -> Scenario:
    """Requests to the mock server, which takes so long for each."""
    target, _ = Target.objects.get_or_create(name=name, defaults={"base_url": url, "model": "mock"})
    options = {"num_prompts": 600, "request_rate": 20, "random_input_len": 8, "tokenizer": "none"}
    given = {**options, "extra_body": answer(seconds), **profile}
    return Scenario.objects.create(name=name, target=target, profile=given)


@contextmanager
def executing(run: Run, stopping: threading.Event) -> Iterator[None]:
    """The claimed run is executed beside us, as by a worker; at the end it is over."""

    def work() -> None:
        try:
            execute(run, stopping)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def wait_for(run: Run, condition: Callable[[Run], object], what: str) -> None:
    def holds() -> object:
        run.refresh_from_db()
        return condition(run)

    wait_until(holds, PATIENCE, what)


def some_done(run: Run) -> bool:
    return run.progress.get("done", 0) >= 2


def claimed(scenario: Scenario) -> Run:
    queue(scenario)
    run = Run.objects.claim_next()
    assert run is not None
    return run


# -- a real service


def test_schedule_admin_and_terminal_measure_the_same(service, tmp_path):
    scenario = make_scenario(base_url=service.url, profile=SMALL, seed=5)
    scenario.full_clean()
    GateRule.objects.create(scenario=scenario, metric="success_rate", comparison=">=", limit=1)
    [by_admin] = queue(scenario)
    tasks.execute_run()

    hourly = IntervalSchedule.objects.create(every=1, period="hours")
    schedule = Schedule.objects.create(name="hourly", scenario=scenario, interval=hourly)
    app.tasks[schedule.task](**app.backend.decode(schedule.kwargs))  # as a worker does with what beat has sent
    by_schedule = Run.objects.exclude(pk=by_admin.pk).get()
    tasks.execute_run()

    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, "seed": 5}.items()]
    path = tmp_path / "result.json"
    command = [sys.executable, "manage.py", "bench", "serve", "--no-store", "--disable-tqdm", f"--result={path}"]
    done = subprocess.run(
        [*command, f"--base-url={service.url}", *words], cwd=BASE_DIR, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    by_terminal = results.load(path)

    for run, origin in ((by_admin, "admin"), (by_schedule, "schedule")):
        run.refresh_from_db()
        assert (run.status, run.origin, run.error) == (Status.DONE, origin, "")
        stored = load_result(run.pk)
        assert run.requests == 20
        assert [result.outcome for result in run.gate_results.all()] == ["pass"]
        for name in ("requests", "tokens", "input_length", "output_length", "output_token_sources"):
            assert stored.summary[name] == by_terminal.summary[name]
        own = {"allow_host"}  # the console has checked the host itself, and tells the command so
        assert {k: v for k, v in stored.profile.items() if k not in own} == {
            k: v for k, v in by_terminal.profile.items() if k not in own
        }
        assert not list(run.file("result").parent.glob(f"{run.key}*"))


# -- how runs end


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


def test_a_target_that_dies_midway_fails_the_run_which_keeps_what_it_measured():
    dying = running_mock_server()
    run = claimed(mock_scenario(dying.__enter__(), name="dying", num_prompts=60))
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

    long_ago = timezone.now() - timedelta(seconds=LOST_SECONDS + 1)
    Run.objects.filter(pk=run.pk).update(heartbeat=long_ago)
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


def test_a_scenario_that_is_gone_or_busy_is_left_out():
    scenario = make_scenario()
    for _ in range(2):
        tasks.run_scenario(scenario=scenario.pk)
    tasks.run_scenario(scenario=scenario.pk + 1)
    assert Run.objects.count() == 1
