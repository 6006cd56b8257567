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

from benchmarks import stopping, storage, tasks, watching
from benchmarks.actions import cancel_run
from benchmarks.loadgen import results
from benchmarks.models import GateRule, Run, Scenario, Schedule, Status, Target
from benchmarks.models.runs import LOST_SECONDS
from benchmarks.processes import execute
from benchmarks.run_files import read_progress
from benchmarks.storage import load_result
from rwkvsite.celery import app
from rwkvsite.env import BASE_DIR
from tests.benchmarks.results import make_result
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
            execute(Run.objects.get(pk=run.pk), stopping)  # a row of its own: we look at ours meanwhile
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

    be_silent(run)
    tasks.tend_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the process that supervised it died")
    assert run.summary["requests"]["completed"] >= 2
    assert not is_running(run.pid)

    tasks.execute_run()
    next_run.refresh_from_db()
    assert next_run.status == Status.DONE


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
    run = claimed(mock_scenario(mock, num_prompts=60))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        with runs_out_of_reach():
            wait_until(lambda: "goes on, though the database fails" in caplog.text, PATIENCE, "a heartbeat has failed")
        wait_for(run, lambda run: not run.is_open, "the run is over")
    assert (run.status, run.error) == (Status.DONE, "")
    assert run.summary["requests"]["completed"] == 60


def test_a_run_whose_row_is_out_of_reach_for_too_long_keeps_what_it_measured(mock, monkeypatch):
    run = claimed(mock_scenario(mock))
    monkeypatch.setattr(watching, "LOST_SECONDS", 2.0)
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        with runs_out_of_reach():
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
    event = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    script = Script(steps=[Step(write=1500 * event), Step(write="data: [DONE]\n\n")])
    run = claimed(mock_scenario(mock, num_prompts=3000, request_rate=150, extra_body=script_body(script)))
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


def test_nobody_stores_a_run_that_another_has_taken_over(mock):
    run = claimed(mock_scenario(mock))
    with executing(run, threading.Event()):
        wait_for(run, some_done, "requests are done")
        be_silent(run)
        tasks.tend_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the process that supervised it died")
    assert run.records.count() == run.summary["requests"]["total"]


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


@contextmanager
def runs_out_of_reach() -> Iterator[None]:
    """Whatever asks for runs gets an error from the database."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE benchmarks_run RENAME TO benchmarks_run_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE benchmarks_run_away RENAME TO benchmarks_run")


def be_silent(run: Run) -> None:
    """As if its supervisor had said nothing for too long."""
    Run.objects.filter(pk=run.pk).update(heartbeat=timezone.now() - timedelta(seconds=LOST_SECONDS + 1))


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
