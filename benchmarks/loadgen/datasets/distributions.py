"""Random whole numbers as a conversation generator's file describes them."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from math import exp, log, sqrt
from random import Random
from typing import Any

from benchmarks.loadgen.declare import BadOption

Sampler = Callable[[Random], int]
LARGEST = 1_000_000  # where a distribution gives no max


def sampler(name: str, spec: Any) -> Sampler:
    """For a number, or for {"distribution": constant | uniform | lognormal | zipf | poisson, ...}.

    Raises BadOption, which calls the distribution by `name`.
    """
    if isinstance(spec, int):
        return lambda draw: spec
    try:
        return _MAKERS[spec["distribution"]](spec)
    except (KeyError, TypeError) as error:
        raise BadOption(f"--conversation-spec: {name} is no distribution: {error} in {spec!r}") from None


def _constant(spec: Mapping[str, Any]) -> Sampler:
    value = int(spec["value"])
    return lambda draw: value


def _uniform(spec: Mapping[str, Any]) -> Sampler:
    low, high = int(spec["min"]), int(spec["max"])
    return lambda draw: draw.randint(low, high)


def _lognormal(spec: Mapping[str, Any]) -> Sampler:
    """By mean and sigma of the logarithm, or by the average and the ratio of the median to it."""
    if "average" in spec:
        ratio = spec.get("median_ratio", 0.85)
        mean, sigma = log(spec["average"] * ratio), sqrt(-2 * log(ratio))
    else:
        mean, sigma = spec["mean"], spec["sigma"]
    most = spec.get("max", LARGEST)
    return lambda draw: min(most, max(1, round(draw.lognormvariate(mean, sigma))))


def _zipf(spec: Mapping[str, Any]) -> Sampler:
    values = range(1, int(spec["max"]) + 1)
    weights = list(accumulate(value ** -spec["alpha"] for value in values))
    return lambda draw: draw.choices(values, cum_weights=weights)[0]


def _poisson(spec: Mapping[str, Any]) -> Sampler:
    mean, most = float(spec["alpha"]), spec.get("max", LARGEST)

    def sample(draw: Random) -> int:
        # Arrivals of a process of rate 1 within `mean`, a part at a time: exp(-mean) is 0 for a large mean.
        count, left = 0, mean
        while left > 0:
            part = min(left, 500.0)
            product, limit = draw.random(), exp(-part)
            while product > limit:
                count, product = count + 1, product * draw.random()
            left -= part
        return int(min(most, count))

    return sample


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Sampler]] = {
    "constant": _constant,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "zipf": _zipf,
    "poisson": _poisson,
}
