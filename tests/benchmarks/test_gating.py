"""How runs are held against the rules of their scenario."""

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from benchmarks import gating, tasks
from benchmarks.actions import cancel_run, pin_baseline, run_again
from benchmarks.gating import judge, judge_ended
from benchmarks.loadgen.records import RunResult
from benchmarks.models import GateRule, Run, Status
from tests.benchmarks.rows import finish, make_scenario, measured_run, queue

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def test_gates_judge_a_run_and_its_change_from_the_baseline():
    scenario = make_scenario()
    absolute = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=1000)
    relative = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=20, relative=True)
    baseline = measured_run(scenario, requests=60, ttft=0.1)
    judge(baseline)
    assert outcomes(baseline) == {absolute: "pass", relative: "not comparable"}
    pin_baseline(baseline, by="ada")
    for ttft, outcome in ((0.1, "pass"), (0.2, "fail")):
        run = measured_run(scenario, requests=60, ttft=ttft)
        judge(run)
        assert outcomes(run) == {absolute: "pass", relative: outcome}


def test_a_run_of_a_sweep_is_measured_against_the_same_load_of_the_pinned_one():
    scenario = make_scenario(sweep_option="request_rate", sweep_values=[1, 2])
    rule = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=20, relative=True)
    slow_at_two = {1: 0.1, 2: 0.5}
    first = [finish(run, requests=60, ttft=slow_at_two[run.sweep_value]) for run in queue(scenario)]
    pin_baseline(first[0], by="ada")
    for run in [finish(run, requests=60, ttft=slow_at_two[run.sweep_value]) for run in queue(scenario)]:
        judge(run)
        assert outcomes(run) == {rule: "pass"}


def test_a_run_of_a_sweep_that_is_run_again_is_measured_against_the_same_load():
    scenario = make_scenario(sweep_option="request_rate", sweep_values=[1, 2])
    rule = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=20, relative=True)
    slow_at_two = {1: 0.1, 2: 0.5}
    first = [finish(run, requests=60, ttft=slow_at_two[run.sweep_value]) for run in queue(scenario)]
    pin_baseline(first[0], by="ada")
    for run in first:
        again = finish(run_again(run), requests=60, ttft=slow_at_two[run.sweep_value])
        judge_ended(again)
        assert outcomes(again) == {rule: "pass"}


@pytest.mark.parametrize("last", ["done", "failed", "cancelled"])
def test_repeats_are_judged_together_once_the_last_of_them_is_over(last):
    """The first alone is too slow, all of them together are not."""
    scenario = make_scenario(repeats=3)
    rule = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=300)
    *runs, final = queue(scenario)
    for run, ttft, alone in zip(runs, (0.3, 0.1), ("fail", "pass"), strict=True):
        judge_ended(finish(run, requests=60, ttft=ttft))
        assert outcomes(run) == {rule: alone}
    assert outcomes(runs[0]) == {rule: "fail"}  # not yet judged again
    if last == "done":
        finish(final, requests=60, ttft=0.1)
        judge_ended(final)
    elif last == "failed":
        final.end(Status.FAILED, "it was told to")
        judge_ended(final)
    else:
        cancel_run(final)
        tasks.judge_series(run=final.pk)  # a worker's part
    done = [*runs, final] if last == "done" else runs
    for run in done:
        assert outcomes(run) == {rule: "pass"}
        assert f"mean of {len(done)} runs" in run.gate_results.get().words
    if last != "done":
        assert outcomes(final) == {}


def test_a_run_whose_worker_died_before_it_was_judged_is_judged_by_whoever_tends_the_runs():
    scenario = make_scenario()
    rule = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=1000)
    left, old, now, without = (measured_run(one) for one in (scenario, scenario, scenario, make_scenario("without")))
    Run.objects.exclude(pk=now.pk).update(finished=timezone.now() - timedelta(minutes=2))
    Run.objects.filter(pk=old.pk).update(finished=timezone.now() - timedelta(days=2))
    tasks.tend_runs()
    assert outcomes(left) == {rule: "pass"}
    assert not outcomes(old) and not outcomes(without)
    assert not outcomes(now)  # its worker is about to

    decided = left.gate_results.get().decided
    tasks.tend_runs()
    assert left.gate_results.get().decided == decided


def test_a_run_that_cannot_be_judged_keeps_no_other_from_it(monkeypatch, caplog):
    scenario, load = make_scenario(), gating.load_result
    rule = GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=1000)
    broken, sound = measured_run(scenario), measured_run(scenario)
    Run.objects.update(finished=timezone.now() - timedelta(minutes=2))

    def load_result(pk: int) -> RunResult:
        if pk == broken.pk:
            raise OperationalError("the database is away")
        return load(pk)

    monkeypatch.setattr(gating, "load_result", load_result)
    tasks.tend_runs()
    assert (outcomes(broken), outcomes(sound)) == ({}, {rule: "pass"})
    assert f"{broken} could not be judged" in caplog.text
    monkeypatch.undo()
    tasks.tend_runs()
    assert outcomes(broken) == {rule: "pass"}


def outcomes(run: Run) -> dict[GateRule, str]:
    return {result.rule: result.outcome for result in run.gate_results.all()}
