"""Send times against what they should be: means, spreads, integrals of the rate, and whole distributions."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from random import Random
from statistics import mean, stdev
from typing import Any

import pytest
from scipy import integrate, stats

from benchmarks.loadgen import schedule
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.plan import make_plan

# With these seeds; a wrong law gives values far below.
LEAST_P = 0.01


def drawn_gaps(burstiness: float, count: int = 20_000) -> list[float]:
    return [gap for gap, _ in zip(schedule.gaps(burstiness, Random(1)), range(count), strict=False)]


def intervals(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_of_their_gamma_law(burstiness: float):
    gaps = drawn_gaps(burstiness)
    assert mean(gaps) == pytest.approx(1, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
    assert stats.kstest(gaps[:2000], stats.gamma(a=burstiness, scale=1 / burstiness).cdf).pvalue > LEAST_P


def test_infinite_burstiness_is_even():
    times = schedule.arrivals(schedule.Constant(8), inf, Random(0), count=16)
    assert intervals(times) == pytest.approx([1 / 8] * 16)


def test_a_poisson_load_has_exponential_gaps():
    times = schedule.arrivals(schedule.Constant(50), 1.0, Random(3), until=60.0)
    assert stats.kstest(intervals(times), stats.expon(scale=1 / 50).cdf).pvalue > LEAST_P
    assert len(times) == pytest.approx(50 * 60, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 3.0])
def test_the_last_of_so_many_requests_is_sent_at_their_number_over_the_rate(burstiness: float):
    times = schedule.arrivals(schedule.Constant(20), burstiness, Random(7), count=300)
    assert len(times) == 300
    assert times[-1] == pytest.approx(15)
    assert times == sorted(times)


def test_the_same_seed_draws_the_same_times():
    first, again, other = (
        schedule.arrivals(schedule.Constant(5), 1.0, Random(seed), count=50) for seed in ("a", "a", "b")
    )
    assert first == again
    assert first != other


CURVES = {
    "constant": schedule.Constant(12),
    "linear up": schedule.LinearRamp(0, 40, 30),
    "linear down": schedule.LinearRamp(40, 4, 30),
    "exponential up": schedule.ExponentialRamp(2, 64, 30),
    "exponential down": schedule.ExponentialRamp(64, 2, 30),
    "stages": schedule.Stages(((10, 8), (0, 4), (30, 60))),
    "sinus": schedule.Sinus(20, 20, 13),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES.keys())
def test_a_curve_expects_the_integral_of_its_rate_and_inverts_it(curve: schedule.RateCurve):
    for time in (0.5, 5.0, 11.0, 29.0, 45.0):
        by_hand, _ = integrate.quad(curve.rate, 0, time, points=[8, 12, 30], limit=200)
        assert curve.expected(time) == pytest.approx(by_hand, rel=1e-6)
        if curve.rate(time):
            assert curve.when(curve.expected(time)) == pytest.approx(time, abs=1e-5)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES.keys())
def test_arrivals_follow_the_curve(curve: schedule.RateCurve):
    times = schedule.arrivals(curve, 1.0, Random(11), until=40.0)
    total = curve.expected(40.0)
    assert len(times) == pytest.approx(total, abs=4 * total**0.5)
    # Given their number, arrivals of a Poisson process are spread as the integral of its rate.
    assert stats.kstest([curve.expected(time) / total for time in times], "uniform").pvalue > LEAST_P


def test_a_ramp_lasts_until_all_its_requests_are_sent():
    for strategy, start in (("linear", 0.0), ("linear", 5.0), ("exponential", 5.0)):
        seconds = schedule.ramp_seconds(strategy, start, 45.0, 500)
        assert schedule.ramp(strategy, start, 45.0, seconds).expected(seconds) == pytest.approx(500)


def test_a_ramp_without_a_slope_is_a_constant_rate():
    assert schedule.ramp("exponential", 5.0, 5.0, 10.0).expected(3.0) == 15.0


def test_a_ramp_by_index_has_its_rate_at_each_request():
    rates = schedule.rates_by_index("exponential", 2, 32, 5)
    assert rates == pytest.approx([2, 4, 8, 16, 32])
    assert schedule.rates_by_index("linear", 2, 10, 5) == [2, 4, 6, 8, 10]
    times = schedule.arrivals_by_index(rates, inf, Random(0))
    assert intervals(times) == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32])


def test_a_pause_sends_nothing_and_the_last_stage_ends_the_load():
    times = schedule.arrivals(schedule.Stages(((10, 2), (0, 3), (5, 2))), inf, Random(0))
    assert len(times) == 30
    assert not [time for time in times if 2 < time <= 5]
    assert times[-1] == pytest.approx(7)


def test_a_load_without_an_end_is_refused():
    with pytest.raises(ValueError, match="a number of requests or a duration"):
        schedule.arrivals(schedule.Constant(5), 1.0, Random(0))


@pytest.mark.parametrize(
    "values",
    [
        {"request_rate": 0.001, "duration": 0.1},
        {"stages": ["0:5"], "num_prompts": 3},
        {"ramp_up_strategy": "linear", "ramp_up_start_rps": 0.001, "ramp_up_end_rps": 0.002, "ramp_up_by": "index",
         "num_prompts": 5, "duration": 0.1},
    ],
)  # fmt: skip
def test_a_time_too_short_for_a_request_is_refused(values: dict[str, Any]):
    with pytest.raises(BadOption, match="in so short a time the schedule has no request"):
        make_plan(checked_profile({**values, "tokenizer": "none"}))


def test_a_trace_begins_at_once_and_is_stretched():
    assert schedule.trace([12.0, 10.0, 11.5], 2.0) == [0.0, 3.0, 4.0]


def test_users_start_evenly():
    assert schedule.user_starts(4, 2.0) == [0.0, 0.5, 1.0, 1.5]


def test_a_rate_that_passes_a_whole_number_is_an_event():
    changes = schedule.rate_changes([0.0, 1.0, 2.0, 3.0], lambda index, _: [1.2, 1.9, 2.0, 4.5][index])
    assert [(change.time, change.rate) for change in changes] == [(0.0, 1.2), (2.0, 2.0), (3.0, 4.5)]
