"""A server that falls behind is told from one that is merely slow or noisy."""

from math import inf
from random import Random

import pytest

from benchmarks.loadgen.saturation import LEAST_SECONDS, Saturation, slope_t


def first_seen(in_flight: list[int], ttfts: list[float]) -> float | None:
    """With a sample each second."""
    saturation = Saturation()
    for second, (count, ttft) in enumerate(zip(in_flight, ttfts, strict=True)):
        saturation.add(float(second), count, [ttft])
    return saturation.since


def noise(mean: float, seed: int) -> list[float]:
    draw = Random(seed)
    return [mean + draw.uniform(-1, 1) for _ in range(100)]


def test_growth_of_both_is_seen_once_there_is_enough_of_it():
    assert first_seen([10 + 3 * n for n in range(100)], [1 + 0.2 * n for n in range(100)]) == LEAST_SECONDS


@pytest.mark.parametrize(
    ("in_flight", "ttfts"),
    [
        ([40] * 100, noise(8, 1)),  # slow
        ([10 + 3 * n for n in range(100)], [1.0] * 100),  # more and more, at no cost
        ([40] * 100, [1 + 0.2 * n for n in range(100)]),  # longer and longer prompts
        ([200 - n for n in range(100)], [30 - 0.2 * n for n in range(100)]),  # recovers
    ],
)
def test_what_does_not_fall_behind_is_not_accused(in_flight: list[int], ttfts: list[float]):
    assert first_seen(in_flight, ttfts) is None


def test_the_slope_is_held_against_its_error():
    assert slope_t([0, 1, 2, 3], [1, 3, 5, 7]) == inf
    assert slope_t([0, 1, 2, 3], [5, 5, 5, 5]) == 0
    # By hand: slope 0.6, residual sum of squares 0.2, spread 5, so 0.6 / sqrt(0.2 / 2 / 5).
    assert slope_t([0, 1, 2, 3], [0, 1, 1, 2]) == pytest.approx(0.6 / (0.2 / 2 / 5) ** 0.5)
