"""Targets, data sets, scenarios, schedules and the queue of runs: what is refused, and what follows from what."""

import hashlib
import json
import os
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

from benchmarks import datafiles, tasks
from benchmarks.actions import NotPossible, cancel_run, pin_baseline, queue_scenario, run_again
from benchmarks.models import Baseline, Dataset, GateRule, Origin, Run, Scenario, Schedule, Status, Target
from benchmarks.models.runs import LOST_SECONDS, files_folder
from tests.benchmarks.rows import finish, make_scenario, measured_run, queue

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def errors_of(row) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as caught:
        row.full_clean()
    return caught.value.message_dict


# -- targets and data sets


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:9/v1", "http://127.9.9.9"])
def test_this_machine_may_be_measured(url):
    Target(name="here", base_url=url).full_clean()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://10.0.0.1:8000", "neither on loopback nor in BENCHMARK_TARGETS"),
        ("http://localhost.example:8000", "neither on loopback"),
        ("http://169.254.169.254/latest", "neither on loopback"),
        ("http://allowed.example:8080", "neither on loopback"),
        ("ftp://127.0.0.1", "must begin with http"),
        ("127.0.0.1:8000", "must begin with http"),
        ("http://127.0.0.1:port", "is no address"),
        ("http://user:secret@127.0.0.1", "neither a user"),
        ("http://127.0.0.1/?key=1", "neither a user nor a query"),
    ],
)
def test_other_addresses_are_refused(url, words, monkeypatch):
    allow(monkeypatch, "http://allowed.example")
    assert words in errors_of(Target(name="there", base_url=url))["base_url"][0]


def test_an_origin_of_the_setting_may_be_measured(monkeypatch):
    allow(monkeypatch, "https://allowed.example", "http://10.0.0.7:8000")
    for url in ("https://allowed.example:443/v1", "http://10.0.0.7:8000"):
        Target(name="there", base_url=url).full_clean()


def allow(monkeypatch, *origins: str) -> None:
    monkeypatch.setattr(settings, "RWKV", replace(settings.RWKV, benchmark_targets=origins))


def test_a_key_is_only_named_and_by_a_name_that_keys_have():
    target = Target(name="there", base_url="http://127.0.0.1", api_key_variable="DATABASE_URL")
    assert "_API_KEY" in errors_of(target)["api_key_variable"][0]
    target.api_key_variable = "OTHER_API_KEY"
    target.headers = {"Authorization": "Bearer secret"}
    assert "would store a secret" in errors_of(target)["headers"][0]


@pytest.fixture
def data_folder():
    datafiles.folder().mkdir(parents=True, exist_ok=True)
    return datafiles.folder()


def test_a_data_set_knows_its_file(data_folder):
    lines = ['{"prompt": "one"}', '{"prompt": "three"}', ""]
    (data_folder / "lines.jsonl").write_text("\n".join(lines))
    dataset = Dataset.objects.create(name="lines", kind="custom", path="lines.jsonl")
    assert dataset.sha256 == hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert dataset.rows == 2
    assert dataset.length_stats == {"min": 17, "mean": 18.0, "max": 19}
    (data_folder / "array.json").write_text(json.dumps([{"a": 1}, {"a": 2}, {"a": 3}]))
    assert Dataset.objects.create(name="array", kind="sharegpt", path="array.json").rows == 3
    (data_folder / "empty.json").write_text("[]")
    assert Dataset.objects.create(name="empty", kind="sharegpt", path="empty.json").rows == 0
    (data_folder / "separators.jsonl").write_text('{"prompt": "one\u2028two"}\n')
    assert Dataset.objects.create(name="separators", kind="custom", path="separators.jsonl").rows == 1


@pytest.mark.parametrize("path", ["../../secret_key", "/etc/passwd", "gone.jsonl"])
def test_a_data_set_is_a_file_of_its_folder(path, data_folder):
    assert "path" in errors_of(Dataset(name="any", kind="custom", path=path))


# -- scenarios


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"profile": {"num_promts": 1}}, "profile", "'num_promts' is not an option"),
        ({"profile": {"num_prompts": 0}}, "profile", "--num-prompts"),
        ({"profile": {"base_url": ["http://10.0.0.1"]}}, "profile", "is set by the target"),
        ({"profile": {"allow_host": ["10.0.0.1"]}}, "profile", "is set by the target"),
        ({"profile": {"system_prompt_path": "/etc/passwd"}}, "profile", "reads any file"),
        ({"profile": []}, "profile", "must be an object"),
        ({"kind": "clients"}, "profile", "--users"),
        ({"profile": {"users": 2}}, "profile", "--users"),
        ({"slos": {"latency": 1}}, "slos", "'latency' is none of"),
        ({"slos": {"ttft": -1}}, "slos", "not a limit in ms"),
        ({"sweep_option": "request_rate"}, "sweep_values", "an option and a list of values"),
        ({"sweep_option": "request_rate", "sweep_values": [1, 0]}, "sweep_values", "--request-rate"),
        ({"sweep_option": "request_rate", "sweep_values": ["fast"]}, "sweep_values", "numbers"),
        ({"sweep_option": "host", "sweep_values": [1]}, "sweep_option", "is set by the target"),
        ({"tags": "nightly"}, "tags", "list of words"),
    ],
)
def test_what_the_command_would_refuse_is_refused_in_the_form(changes, field, words):
    target = Target.objects.create(name="here", base_url="http://127.0.0.1:1")
    scenario = Scenario(**{"name": "any", "target": target, "profile": {"num_prompts": 2}, **changes})
    assert words in errors_of(scenario)[field][0]


def test_a_scenario_freezes_everything_its_runs_depend_on(data_folder):
    (data_folder / "rows.jsonl").write_text('{"prompt": "one"}')
    dataset = Dataset.objects.create(name="rows", kind="custom", path="rows.jsonl", parameters={"custom_output_len": 9})
    scenario = make_scenario(dataset=dataset, slos={"ttft": 100}, seed=7, max_seconds=60)
    scenario.full_clean()
    frozen = queue(scenario)[0].configuration
    assert frozen["options"] == {
        "base_url": ["http://127.0.0.1:1"],
        "allow_host": ["127.0.0.1"],
        "backend": "openai",
        "dataset_name": "custom",
        "dataset_path": str(data_folder / "rows.jsonl"),
        "custom_output_len": 9,
        "num_prompts": 20,
        "request_rate": 10,
        "goodput": {"ttft": 100},
        "seed": 7,
    }
    assert (frozen["dataset"]["sha256"], frozen["max_seconds"]) == (dataset.sha256, 60)


def test_a_sweep_is_queued_round_by_round():
    runs = queue(make_scenario(sweep_option="request_rate", sweep_values=[1, 2, 4], repeats=2))
    assert [run.repeat for run in runs] == [1, 1, 1, 2, 2, 2]
    assert sorted(run.sweep_value for run in runs[:3]) == sorted(run.sweep_value for run in runs[3:]) == [1, 2, 4]
    assert all(run.configuration["options"]["request_rate"] == run.sweep_value for run in runs)
    assert len({run.series for run in runs}) == 1


def test_runs_of_a_series_have_prompts_of_their_own_and_those_of_the_next_series_the_same_again():
    scenario = make_scenario(seed=7, sweep_option="request_rate", sweep_values=[1, 2, 4], repeats=2)

    def queued() -> list[tuple[float, int, int]]:
        runs = queue(scenario)
        for run in runs:
            cancel_run(run)
        return [(run.sweep_value, run.repeat, run.configuration["options"].get("prompt_seed")) for run in runs]

    first = queued()
    assert [seed for _, _, seed in first] == [None, 8, 9, 10, 11, 12]  # None: the scenario's own
    assert queued() == first  # so that the same load of two series has the same prompts


def test_a_run_of_a_sweep_that_is_run_again_keeps_its_load():
    first, second = queue(make_scenario(sweep_option="request_rate", sweep_values=[1, 2]))
    for run in (finish(first), finish(second)):
        again = run_again(run)
        assert (again.sweep_value, again.repeat) == (run.sweep_value, 1)
        assert again.configuration["options"] == run.configuration["options"]
        assert again.series and again.series != run.series


def test_a_scenario_is_not_queued_again_while_runs_of_it_wait():
    scenario = make_scenario()
    queue(scenario)
    with pytest.raises(NotPossible, match="not over yet"):
        queue_scenario(scenario, origin=Origin.SCHEDULE)


# -- schedules


@pytest.fixture
def hourly():
    return IntervalSchedule.objects.create(every=1, period="hours")


def test_a_schedule_is_a_periodic_task_that_names_task_and_scenario(hourly):
    scenario = make_scenario()
    schedule = Schedule.objects.create(name="every hour", scenario=scenario, interval=hourly)
    task = PeriodicTask.objects.get(name="every hour")
    assert task.task == "benchmarks.tasks.run_scenario"
    assert json.loads(task.kwargs) == {"scenario": scenario.pk, "origin": "schedule"}
    assert task.expire_seconds == 3600
    before = PeriodicTasks.last_change()
    schedule.enabled = False
    schedule.save()
    assert not PeriodicTask.objects.get(name="every hour").enabled
    assert PeriodicTasks.last_change() > before  # beat reads its tasks anew


def test_nothing_of_a_schedule_stays_when_it_or_its_scenario_goes(hourly):
    for deleted in (Schedule, Scenario):
        Schedule.objects.create(name="every hour", scenario=make_scenario(), interval=hourly)
        deleted.objects.all().delete()
        assert not PeriodicTask.objects.filter(name="every hour").exists()
        Scenario.objects.all().delete()


# -- the queue


def test_runs_are_claimed_one_at_a_time_and_in_order():
    first, second = queue(make_scenario(repeats=2))
    assert Run.objects.claim_next() == first
    assert Run.objects.claim_next() is None
    first.end(Status.DONE)
    assert Run.objects.claim_next() == second


def test_the_database_refuses_two_running_runs():
    runs = queue(make_scenario(repeats=2))
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(pk__in=[run.pk for run in runs]).update(status=Status.RUNNING)


def test_a_run_that_is_over_has_an_end_and_an_open_one_has_none():
    run = queue(make_scenario())[0]
    for changes in ({"status": Status.DONE}, {"finished": timezone.now()}, {"status": "odd"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Run.objects.filter(pk=run.pk).update(**changes)


def test_a_waiting_run_is_cancelled_at_once_and_a_running_one_is_asked():
    waiting, running = queue(make_scenario("a"))[0], queue(make_scenario("b"))[0]
    cancel_run(waiting)
    assert waiting.status == Status.CANCELLED
    Run.objects.claim_next()
    cancel_run(running)
    assert (running.status, running.cancel_requested) == (Status.RUNNING, True)
    with pytest.raises(NotPossible, match="that is cancelled"):
        cancel_run(waiting)


def test_a_run_that_was_ended_elsewhere_is_not_ours_any_more():
    queue(make_scenario())
    run = Run.objects.claim_next()
    assert run.beat()
    Run.objects.get(pk=run.pk).end(Status.LOST)
    assert not run.beat()
    assert not run.end(Status.DONE)
    assert run.status == Status.LOST


def test_a_silent_run_is_taken_over_once_and_is_its_old_supervisors_no_more():
    queue(make_scenario())
    run = Run.objects.claim_next()
    first, second = Run.objects.get(pk=run.pk), Run.objects.get(pk=run.pk)
    assert not first.take_over()  # somebody was there a moment ago
    Run.objects.filter(pk=run.pk).update(heartbeat=timezone.now() - timedelta(seconds=LOST_SECONDS + 1))
    assert first.take_over()
    assert not second.take_over()
    assert first.beat()
    assert not run.beat()


def test_a_heartbeat_that_is_far_ahead_is_silence():
    """The clock was set back: by its row the run would be alive until that hour comes again."""
    queue(make_scenario())
    run = Run.objects.claim_next()
    assert run.beat(quiet_seconds=600)  # for a large result
    assert not Run.objects.silent()
    Run.objects.update(heartbeat=timezone.now() + timedelta(hours=1))
    assert run.take_over()


# -- what is kept


def test_the_requests_of_old_runs_are_removed_and_their_figures_stay(monkeypatch):
    scenario = make_scenario(repeats=2)
    pinned, other = [finish(run) for run in queue(scenario)]
    pin_baseline(pinned, by="ada")
    old, alone, young = (measured_run(make_scenario(name)) for name in ("old", "alone", "young"))
    Run.objects.filter(pk=alone.pk).update(series="")  # as one from a terminal
    long_ago = timezone.now() - timedelta(days=31)
    Run.objects.exclude(pk=young.pk).update(finished=long_ago)

    monkeypatch.setattr(settings, "RWKV", replace(settings.RWKV, benchmark_ttl_days=0))
    tasks.remove_old_records()
    assert old.records.exists()
    monkeypatch.setattr(settings, "RWKV", replace(settings.RWKV, benchmark_ttl_days=30))
    tasks.remove_old_records()
    for run in (old, alone):
        assert not run.records.exists() and not run.buckets.exists()
        run.refresh_from_db()
        assert run.summary["requests"]["total"] == run.requests == 20
    for run in (pinned, other, young):  # a baseline is compared with, request by request
        assert run.records.exists() and run.buckets.exists()


def test_files_that_a_run_has_left_are_removed_after_a_day():
    over, running, waiting = measured_run(make_scenario("over")), *queue(make_scenario(repeats=2))
    assert Run.objects.claim_next() == running
    files_folder().mkdir(parents=True, exist_ok=True)
    names = [f"{run.key}.progress" for run in (over, running, waiting)]
    names += [f"{over.key}.result", f".{over.key}.result.x1y2", "run-deleted.log", f".{running.key}.result.x1y2"]
    old, young = [files_folder() / name for name in names], files_folder() / f"{over.key}.log"
    two_days_ago = time.time() - 2 * 86400
    for path in (*old, young):
        path.touch()
    for path in old:
        os.utime(path, (two_days_ago, two_days_ago))
    try:
        tasks.remove_old_records()
        left = {path.name for path in (*old, young) if path.exists()}
        assert left == {f"{running.key}.progress", f".{running.key}.result.x1y2", f"{waiting.key}.progress", young.name}
    finally:
        for path in (*old, young):
            path.unlink(missing_ok=True)


# -- gates


def test_only_a_finished_run_of_the_scenario_can_be_its_baseline():
    scenario, other = make_scenario("a"), make_scenario("b")
    with pytest.raises(NotPossible):
        pin_baseline(queue(scenario)[0], by="ada")
    run = measured_run(other)
    assert "another scenario" in errors_of(Baseline(scenario=scenario, run=run))["run"][0]


def test_a_rule_is_for_a_scenario_or_for_an_eval_and_names_a_figure():
    scenario = make_scenario()
    assert "scenario or for an eval" in errors_of(GateRule(metric="acc", limit=0.5))["__all__"][0]
    assert "'ttft' needs a statistic" in errors_of(GateRule(scenario=scenario, metric="ttft", limit=1))["metric"][0]
    GateRule(eval_task="lambada", metric="acc", comparison=">=", limit=0.45).full_clean()
