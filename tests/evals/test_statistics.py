"""Intervals and p-values against SciPy's."""

import math
from dataclasses import dataclass

import pytest
from scipy.stats import binomtest

from benchmarks.evals.statistics import accuracy, mcnemar, perplexity, wilson


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
