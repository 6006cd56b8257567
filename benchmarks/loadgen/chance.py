"""How far a difference may come from chance: 95% intervals for the difference of two measurements."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from statistics import mean, stdev

Sample = tuple[int, float]  # (block, value): values of one block are drawn together

RESAMPLES = 400
MOST_VALUES = 20_000  # of one measurement; more are thinned out evenly in their order of size

# The 97.5% quantile of Student's t by degrees of freedom; beyond the last, the next lower entry is the careful choice.
_T_975 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
    12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


def interval_of_repeats(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Student's interval of mean(after) - mean(before) with pooled variance; together they need three values or more.

    One of them may be a single value: its scatter is then taken to be that of the other.
    """
    freedom = len(before) + len(after) - 2
    squares = sum((one - mean(group)) ** 2 for group in (before, after) for one in group)
    error = (squares / freedom * (1 / len(before) + 1 / len(after))) ** 0.5
    reach = _t(freedom) * error
    difference = mean(after) - mean(before)
    return difference - reach, difference + reach


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of the mean of repeats; None for a single one, which tells nothing of its scatter."""
    if len(values) < 2:
        return None
    reach = _t(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return mean(values) - reach, mean(values) + reach


def _t(freedom: int) -> float:
    return _T_975[max(known for known in _T_975 if known <= freedom)]


def spread_of_samples(before: Sequence[Sample], after: Sequence[Sample], statistic: str) -> tuple[float, float]:
    """How far below and above statistic(after) - statistic(before) the resamples of a bootstrap lie.

    `statistic` is mean, std, min, max, median or a percentile as in "p99.9". The draws have a fixed seed, so that a
    comparison gives the same answer every time.
    """
    random = Random(0)
    old, new = _Resampler(before, statistic, random), _Resampler(after, statistic, random)
    differences = sorted(new.draw() - old.draw() for _ in range(RESAMPLES))
    outside = RESAMPLES // 40  # 2.5% at each end
    observed = new.observed() - old.observed()
    return differences[outside] - observed, differences[-1 - outside] - observed


class _Resampler:
    """A statistic of blocks drawn with replacement."""

    def __init__(self, samples: Sequence[Sample], statistic: str, random: Random) -> None:
        ordered = sorted(samples, key=lambda sample: sample[1])
        ordered = ordered[:: -(-len(ordered) // MOST_VALUES)]
        places = {block: place for place, block in enumerate(sorted({block for block, _ in ordered}))}
        self._values = [value for _, value in ordered]
        self._owners = [places[block] for block, _ in ordered]
        self._blocks = range(len(places))
        self._statistic, self._random = statistic, random

    def observed(self) -> float:
        return _weighted(self._values, [1] * len(self._values), self._statistic)

    def draw(self) -> float:
        counts = [0] * len(self._blocks)
        for block in self._random.choices(self._blocks, k=len(self._blocks)):
            counts[block] += 1
        return _weighted(self._values, [counts[owner] for owner in self._owners], self._statistic)


def _weighted(values: Sequence[float], weights: Sequence[int], statistic: str) -> float:
    """`values` ascend; a weight says how often its value counts."""
    upto = list(accumulate(weights))
    total = upto[-1]
    if statistic in ("mean", "std"):
        centre = sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
        if statistic == "mean":
            return centre
        squares = sum(weight * (value - centre) ** 2 for value, weight in zip(values, weights, strict=True))
        return float((squares / max(total - 1, 1)) ** 0.5)
    share = {"min": 0.0, "max": 1.0, "median": 0.5}.get(statistic)
    place = (float(statistic[1:]) / 100 if share is None else share) * (total - 1)
    low, beyond = int(place), place - int(place)
    first = values[bisect_left(upto, low + 1)]
    second = values[bisect_left(upto, min(low + 2, total))]
    return first + (second - first) * beyond
