"""The points of a sweep: where they lie, and what is read from them."""

import pytest

from benchmarks.loadgen import sweep
from benchmarks.loadgen.sweep import RANGE, Place, Point


def point(value: float, rate: float, latency: float | None, goodput: float | None = None) -> Point:
    return Point(
        value=value,
        run_id=str(value),
        request_throughput=rate,
        output_throughput=10 * rate,
        success_rate=1.0,
        ttft_p50=None,
        ttft_p99=None,
        tpot_p50=None,
        e2el_mean=latency,
        goodput=goodput,
        client="ok",
    )


def test_the_knee_is_where_throughput_stops_and_latency_begins():
    curve = [point(1, 1, 100), point(2, 2, 102), point(4, 4, 110), point(8, 4.3, 220), point(16, 4.4, 440)]
    found = sweep.knee(list(reversed(curve)))
    assert found is not None and found.value == 4


def test_there_is_no_knee_in_a_line_or_in_two_points():
    assert sweep.knee([point(n, n, 100 * n) for n in range(1, 5)]) is None
    assert sweep.knee([point(1, 1, 100), point(2, 2, 300)]) is None
    assert sweep.knee([point(1, 1, 100), point(2, 2, None), point(3, 2, 300)]) is None


def test_the_highest_good_load_has_no_bad_one_below():
    points = [point(1, 1, 1, 1.0), point(2, 1, 1, 0.995), point(4, 1, 1, 0.9), point(8, 1, 1, 1.0)]
    found = sweep.highest_good(points, 0.99)
    assert found is not None and found.value == 2
    assert sweep.highest_good([point(1, 1, 1, None)], 0.99) is None


@pytest.mark.parametrize("goods", [(1.0, 0.9), (0.9, 1.0)])
def test_a_load_is_as_good_as_the_worst_of_its_repeats(goods: tuple[float, float]):
    points = [point(1, 1, 1, 1.0), *(point(2, 1, 1, good) for good in goods)]
    found = sweep.highest_good(points, 0.99)
    assert found is not None and found.value == 1


def test_the_knee_is_that_of_the_means_over_repeats():
    quick = [point(1, 1, 100), point(2, 2, 100), point(4, 2, 100), point(8, 2, 200)]
    slow = [point(1, 1, 100), point(2, 2, 100), point(4, 6, 120), point(8, 6, 400)]
    for points in (quick + slow, slow + quick):
        found = sweep.knee(points)
        assert found is not None
        assert (found.value, found.request_throughput, found.e2el_mean) == (4, 4, 110)


def test_values_are_spread_evenly_and_whole_ones_are_not_repeated():
    assert sweep.spread(2, 10, 5, whole=False) == [2, 4, 6, 8, 10]
    assert sweep.spread(1, 3, 5, whole=True) == [1, 2, 3]


def test_the_highest_concurrency_follows_from_littles_law():
    assert sweep.highest_concurrency(point(1, rate=8, latency=500)) == pytest.approx(4)


def test_the_order_is_random_and_of_the_seed():
    values = [float(n) for n in range(12)]
    assert sweep.in_random_order(values, 1) == sweep.in_random_order(values, 1) != values
    assert sorted(sweep.in_random_order(values, 1)) == values


def test_every_run_of_a_sweep_has_prompts_files_and_with_its_repeats_a_label_of_its_own():
    runs = [(4.0, 1), (4.0, 2), (8.0, 1), (4.0, RANGE), (0.5, 1)]
    places = [Place(series="s", axis="users", value=value, repeat=repeat) for value, repeat in runs]
    assert len({place.prompt_seed(0) for place in places}) == len(runs)
    assert places[0].prompt_seed(0) == places[0].prompt_seed(0) != places[0].prompt_seed(1)
    assert [place.name for place in places] == ["4-1", "4-2", "8-1", "range-users-4", "0.5-1"]
    labels = [place.label("nightly") for place in places]
    assert labels[0] == labels[1] == "nightly users=4"
    assert len(set(labels)) == len(runs) - 1
    assert places[0].label("") == "s users=4"
