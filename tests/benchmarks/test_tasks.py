"""The real command with a real service: one way to start a run is as good as another."""

import subprocess
import sys

import pytest
from django_celery_beat.models import IntervalSchedule

from benchmarks import tasks
from benchmarks.actions import NotPossible
from benchmarks.loadgen import results
from benchmarks.models import GateRule, Run, Schedule, Status
from benchmarks.storage import load_result
from rwkvsite.celery import app
from rwkvsite.env import BASE_DIR
from tests.benchmarks.executing import PATIENCE, twice_at_once
from tests.benchmarks.rows import make_scenario, queue

# The command runs in a process of its own: no transaction may hide rows from it.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

SMALL = {
    "num_prompts": 20,
    "request_rate": 20,
    "random_input_len": 16,
    "random_output_len": 8,
    "random_range_ratio": 0.5,
}


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


def test_a_scenario_that_is_gone_or_busy_is_left_out():
    scenario = make_scenario()
    for _ in range(2):
        tasks.run_scenario(scenario=scenario.pk)
    tasks.run_scenario(scenario=scenario.pk + 1)
    assert Run.objects.count() == 1


def test_a_scenario_that_is_started_twice_at_once_is_queued_once():
    scenario = make_scenario()
    raised = twice_at_once(lambda: queue(scenario), "benchmarks_run")
    assert [type(error) for error in raised if error] == [NotPossible]
    assert Run.objects.count() == 1
