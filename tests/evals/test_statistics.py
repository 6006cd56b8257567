"""Intervals and p-values against SciPy's."""

import math
import random
from dataclasses import dataclass

import pytest
from scipy.stats import binomtest, t, ttest_rel

from benchmarks.evals.statistics import (
    accuracy,
    mcnemar,
    paired_t,
    perplexity,
    ratio,
    student_p,
    student_quantile,
    wilson,
)


@dataclass
class Judged:
    correct: bool | None
    group: str = ""


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (3, 10), (335, 500), (5153, 5153)])
def test_wilson(successes, n):
    expected = binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert wilson(successes, n) == pytest.approx((successes / n, expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 1), (5, 5), (1, 9), (12, 30), (1000, 1100)])
def test_mcnemar(lost, won):
    expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert mcnemar(lost, won) == pytest.approx(expected)
    assert mcnemar(won, lost) == mcnemar(lost, won)


@pytest.mark.parametrize("freedom", [1, 2, 7, 39, 500, 5152])
def test_students_t(freedom):
    for value in (0.0, 0.01, 0.5, 1.96, 2.5, -4.0, 30.0):
        assert student_p(value, freedom) == pytest.approx(2 * t.sf(abs(value), freedom), rel=1e-9)
    assert student_quantile(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.3])
def test_paired_changes(shift):
    draw = random.Random(1)
    before = [draw.gauss(-5, 3) for _ in range(60)]
    after = [value + draw.gauss(shift, 0.1) for value in before]
    changes = [new - old for old, new in zip(before, after, strict=True)]
    assert paired_t(changes) == pytest.approx(ttest_rel(after, before).pvalue, rel=1e-9)


def test_changes_without_a_spread():
    assert paired_t([0.0, 0.0]) == 1.0
    assert paired_t([0.5, 0.5, 0.5]) == 0.0
    assert paired_t([0.5]) is None


def test_the_interval_of_a_ratio_holds_the_truth_in_19_of_20_cases():
    draw, held, cases = random.Random(2), 0, 2000
    for _ in range(cases):
        sizes = [draw.uniform(50, 150) for _ in range(12)]
        tops = [size * draw.gauss(0.8, 0.1) for size in sizes]
        value, interval = ratio(tops, sizes)
        assert value == pytest.approx(sum(tops) / sum(sizes))
        held += interval is not None and interval[0] <= 0.8 <= interval[1]
    assert 0.93 < held / cases < 0.97
    assert ratio([1.0], [2.0]) == (0.5, None)


def test_accuracy_and_its_groups():
    items = [Judged(True, "a"), Judged(False, "a"), Judged(True, "b"), Judged(None, "b")]
    figures = accuracy(items)
    assert (figures["acc"], figures["correct"]) == (2 / 3, 2)
    assert figures["acc_stderr"] == pytest.approx(1 / 3)  # the sample's standard deviation, 0.577, over sqrt(3)
    assert figures["groups"] == {"a": {"n": 2, "acc": 0.5}, "b": {"n": 1, "acc": 1.0}}
    assert accuracy([Judged(None)]) == {}


def test_perplexity_is_per_document():
    figures = perplexity([-1.0, -2.0, -3.0])
    assert figures["ppl"] == pytest.approx(math.exp(2))
    assert figures["ppl_stderr"] == pytest.approx(math.exp(2) / math.sqrt(3))
    low, high = figures["ppl_ci95"]
    assert low * high == pytest.approx(math.exp(4))
    assert low < figures["ppl"] < high
    assert perplexity([-1e6, 0.0])["ppl"] is None  # JSON has no infinity
