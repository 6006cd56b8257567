"""Scores with their uncertainty, and whether two runs over the same documents differ."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, Protocol

BETA_TERMS = 500  # far more than it takes anywhere
Z95 = 1.959964  # of the normal distribution, two-sided


class Judged(Protocol):
    """An item as far as its statistics need it."""

    correct: bool | None
    group: str


def accuracy(items: Iterable[Judged]) -> dict[str, Any]:
    """`acc`, its standard error and 95% interval (Wilson's), and `groups` where there are any; {} without verdicts."""
    judged = [item for item in items if item.correct is not None]
    if not judged:
        return {}
    share, low, high = wilson(sum(bool(item.correct) for item in judged), len(judged))
    figures: dict[str, Any] = {
        "acc": share,
        # As lm-eval has it: the sample's standard deviation over the root of n.
        "acc_stderr": math.sqrt(share * (1 - share) / (len(judged) - 1)) if len(judged) > 1 else None,
        "acc_ci95": [low, high],
        "correct": sum(bool(item.correct) for item in judged),
    }
    groups: dict[str, list[bool]] = defaultdict(list)
    for item in judged:
        groups[item.group].append(bool(item.correct))
    if groups.keys() != {""}:
        figures["groups"] = {name: {"n": len(of), "acc": fmean(of)} for name, of in sorted(groups.items())}
    return figures


def wilson(successes: int, n: int) -> tuple[float, float, float]:
    """The share and the bounds of its 95% score interval (E. B. Wilson, 1927). `n` is at least 1."""
    share, z2 = successes / n, Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return share, max(middle - half, 0.0), min(middle + half, 1.0)


def perplexity(logprobs: Sequence[float]) -> dict[str, Any]:
    """exp(-mean) of the documents' log probabilities; the error by the delta method, the interval from the mean's."""
    if not logprobs:
        return {}
    mean = fmean(logprobs)
    error = stdev(logprobs) / math.sqrt(len(logprobs)) if len(logprobs) > 1 else None
    value = _exp(-mean)
    interval = None if error is None else [_exp(-mean - Z95 * error), _exp(-mean + Z95 * error)]
    stderr = None if error is None or value is None else value * error
    return {"ppl": value, "ppl_stderr": stderr, "ppl_ci95": interval, "mean_logprob": mean}


def mcnemar(lost: int, won: int) -> float:
    """The exact two-sided p-value of McNemar's test: `lost` and `won` documents changed sides.

    Under the hypothesis that the runs are equally good, the flips are fair coins.
    """
    flips = lost + won
    if flips == 0:
        return 1.0
    tail: int = sum(math.comb(flips, k) for k in range(min(lost, won) + 1))
    return min(1.0, tail / (1 << (flips - 1)))


def ratio(tops: Sequence[float], bottoms: Sequence[float]) -> tuple[float, list[float] | None]:
    """sum(tops) / sum(bottoms) and its 95% interval over the pairs, by linearisation; None for a single pair.

    W. G. Cochran, Sampling Techniques, 1977, section 6.3. With few pairs it is Student's, not the normal one.
    """
    value, n = sum(tops) / sum(bottoms), len(tops)
    if n < 2:
        return value, None
    squares = sum((top - value * bottom) ** 2 for top, bottom in zip(tops, bottoms, strict=True))
    error = math.sqrt(n / (n - 1) * squares) / sum(bottoms)
    reach = student_quantile(n - 1) * error
    return value, [value - reach, value + reach]


def paired_t(changes: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's test that the mean of paired changes is 0; None for fewer than two."""
    if len(changes) < 2:
        return None
    mean, spread = fmean(changes), stdev(changes)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    return student_p(mean / spread * math.sqrt(len(changes)), len(changes) - 1)


def student_p(t: float, freedom: int) -> float:
    """How likely Student's t is at least as far from 0 as `t`."""
    return _beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def student_quantile(freedom: int) -> float:
    """The t whose two-sided p is 0.05, by bisection."""
    low, high = Z95, 13.0  # those of infinitely many degrees of freedom and, a little more, of one
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > 0.05 else (low, middle)
    return high


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, BETA_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction


def _exp(x: float) -> float | None:
    """None where it overflows, since JSON has no infinity."""
    try:
        return math.exp(x)
    except OverflowError:
        return None
