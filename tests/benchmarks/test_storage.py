"""A result goes into rows and comes back."""

from itertools import pairwise

import msgspec
import pytest
from django.db import IntegrityError

from benchmarks.loadgen.records import ErrorClass
from benchmarks.loadgen.sweep import RANGE, Place
from benchmarks.models import Origin, Run, Status
from benchmarks.storage import load_result, store_result
from tests.benchmarks.results import failed_record, make_result

pytestmark = pytest.mark.django_db


def test_a_result_comes_back_as_it_was_stored():
    result = make_result(slos={"ttft": 105})
    assert load_result(store_result(result)) == result


def test_the_columns_of_the_row_are_the_figures_of_the_summary():
    result = make_result(slos={"ttft": 105})
    run = Run.objects.get(pk=store_result(result))
    latency = result.summary["latency_ms"]
    assert (run.requests, run.failed) == (20, 2)
    assert run.ttft_median == latency["ttft"]["median"]
    assert run.tpot_median == latency["tpot"]["median"]
    assert run.e2el_p99 is None  # 18 requests say nothing about one in a hundred
    assert run.output_throughput == result.summary["output_throughput"]["measured"]
    assert run.goodput == result.summary["goodput"]["fraction"]
    assert run.success_rate == 0.9
    assert run.client_verdict == "ok"


def test_every_second_of_the_run_has_a_row():
    run = Run.objects.get(pk=store_result(make_result()))
    seconds = list(run.buckets.values_list("second", flat=True))
    assert seconds == list(range(seconds[0], seconds[-1] + 1))
    assert sum(run.buckets.values_list("sent", flat=True)) == run.records.count()


def test_a_result_without_a_row_is_a_run_that_is_over():
    done, cancelled = (
        Run.objects.get(pk=store_result(make_result(key, cancelled=cancelled), origin=origin))
        for key, cancelled, origin in (("a", False, Origin.TERMINAL), ("b", True, Origin.IMPORT))
    )
    assert (done.status, done.origin) == (Status.DONE, Origin.TERMINAL)
    assert (cancelled.status, cancelled.origin) == (Status.CANCELLED, Origin.IMPORT)
    assert (done.finished - done.started).total_seconds() == pytest.approx(make_result().duration, abs=1e-5)


@pytest.mark.parametrize(
    ("failures", "words"), [(5, "the last 5 requests failed, most with http_5xx: no engine is ready"), (4, "")]
)
def test_a_run_of_the_terminal_whose_target_died_has_failed(failures: int, words: str):
    run = Run.objects.get(pk=store_result(make_result(failures=failures)))
    assert (run.status, run.error) == (Status.FAILED if words else Status.DONE, words)


def test_a_run_of_another_tool_is_done_without_a_single_request():
    ours = msgspec.structs.replace(make_result("ours"), records=[])
    theirs = msgspec.structs.replace(make_result("theirs"), records=[], kind="imported")
    kept = [Run.objects.get(pk=store_result(one, origin=Origin.IMPORT)) for one in (ours, theirs)]
    assert [(run.status, run.error) for run in kept] == [(Status.FAILED, "nothing was sent"), (Status.DONE, "")]


def test_a_run_of_a_sweep_is_kept_with_its_repeats_and_those_of_its_range_alone():
    def stored(value: float, repeat: int) -> Run:
        place = Place(series="series-1", axis="users", value=value, repeat=repeat)
        result = make_result(f"{value}-{repeat}", slos={"ttft": 105})
        result.profile["goodput"] = {"ttft": 105}
        return Run.objects.get(pk=store_result(result, place=place))

    four, again, eight, looked = stored(4, 1), stored(4, 2), stored(8, 1), stored(1, RANGE)
    assert list(four.repeats()) == list(again.repeats()) == [four, again]
    assert (again.series, again.sweep_value, again.repeat) == ("series-1", 4, 2)
    assert eight.is_of_sweep and list(eight.repeats()) == [eight]
    assert not looked.is_of_sweep and list(looked.repeats()) == [looked]
    assert four.configuration["sweep_option"] == "users"
    assert four.configuration["slos"] == {"ttft": 105}
    assert four.configuration["profile"]["num_prompts"] == 20


def test_a_result_for_an_open_run_leaves_it_open_and_replaces_what_was_there():
    run = Run.objects.create(key="run-1", kind="serve", configuration={"scenario": "nightly"})
    store_result(make_result(requests=30), run)
    store_result(make_result(requests=20), run)
    run.refresh_from_db()
    assert run.status == Status.QUEUED
    assert run.records.count() == 21
    assert run.configuration["scenario"] == "nightly"


def test_what_postgresql_cannot_hold_is_left_out():
    result = make_result()
    result.records[-1].text = "nul\0byte"
    result.summary["latency_ms"]["ttft"]["std"] = float("nan")
    result.environment["rate"] = float("inf")
    back = load_result(store_result(result))
    assert back.records[-1].text == "nulbyte"
    assert back.summary["latency_ms"]["ttft"]["std"] is None
    assert back.environment["rate"] is None


def test_some_of_the_records_can_be_loaded_evenly():
    key = store_result(make_result(requests=20, failures=0))
    some = load_result(key, every=3).records
    assert len(some) == 7
    assert {after.index - before.index for before, after in pairwise(some)} == {3}


def test_a_result_that_cannot_be_stored_leaves_nothing():
    result = make_result()
    result.records.append(failed_record(99, ErrorClass.CONNECT))
    result.records[-1].error = None
    with pytest.raises(IntegrityError):
        store_result(result)
    assert not Run.objects.exists()
