"""Statistics of a sample, without claiming a tail that the sample cannot support."""

from collections.abc import Iterable, Sequence
from math import fsum, sqrt

PERMILLES = {"p50": 500, "p75": 750, "p90": 900, "p95": 950, "p99": 990, "p99.9": 999}
SAMPLES_BEYOND = 10  # a percentile is told if as many samples lie beyond it

Distribution = dict[str, float | int | None]


def describe(sample: Iterable[float]) -> Distribution:
    """{count, mean, median, std, min, max, p50, ..., p99.9}, in the sample's unit; None for what cannot be told.

    std is the sample's (n - 1). The median is always told, p50 only by the rule for all percentiles.
    """
    values = sorted(sample)
    count = len(values)
    mean = fsum(values) / count if count else None
    return {
        "count": count,
        "mean": mean,
        "median": percentile(values, 500) if values else None,
        "std": _deviation(values, mean),
        "min": values[0] if values else None,
        "max": values[-1] if values else None,
        **{name: percentile(values, at) if supports(count, at) else None for name, at in PERMILLES.items()},
    }


def supports(count: int, permille: int) -> bool:
    """Whether a sample of `count` can tell this percentile."""
    return count * (1000 - permille) >= SAMPLES_BEYOND * 1000


def percentile(ordered: Sequence[float], permille: float) -> float:
    """Of a sample in ascending order, at least one value long, by linear interpolation between the two neighbours."""
    position = (len(ordered) - 1) * permille / 1000
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _deviation(values: Sequence[float], mean: float | None) -> float | None:
    if mean is None or len(values) < 2:
        return None
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
