"""Scores with their uncertainty, and whether two runs over the same documents differ."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, Protocol

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


def _exp(x: float) -> float | None:
    """None where it overflows, since JSON has no infinity."""
    try:
        return math.exp(x)
    except OverflowError:
        return None
