"""When requests should be sent: pure functions of the options and a seed, in seconds from the start of the load.

An open loop is a renewal process seen through a curve of the rate. Gaps of mean 1 are drawn and added up, and the n-th
request is due when the curve's integral reaches the n-th sum. So every curve (constant, ramp, stages, sinus) takes
every burstiness, and the expected number of requests by time t is the integral of the rate up to t, whatever the curve.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import cos, exp, floor, inf, isinf, log, log1p, pi, sin, sqrt
from random import Random
from typing import Protocol

from benchmarks.loadgen.records import RateChange


class RateCurve(Protocol):
    """A rate in requests per second over time. It ends once it has sent all it ever will: `when` then gives inf."""

    def rate(self, time: float) -> float: ...

    def expected(self, time: float) -> float:
        """The integral of the rate from 0 to `time`: how many requests are due by then."""
        ...

    def when(self, count: float) -> float:
        """The inverse of `expected`; inf where the integral never gets there."""
        ...


@dataclass(frozen=True)
class Constant:
    requests_per_second: float

    def rate(self, time: float) -> float:
        return self.requests_per_second

    def expected(self, time: float) -> float:
        return self.requests_per_second * time

    def when(self, count: float) -> float:
        return count / self.requests_per_second


@dataclass(frozen=True)
class LinearRamp:
    """From `start` to `end` requests per second within `seconds`, then `end` for ever."""

    start: float
    end: float
    seconds: float

    def rate(self, time: float) -> float:
        return self.end if time >= self.seconds else self.start + (self.end - self.start) * time / self.seconds

    def expected(self, time: float) -> float:
        ramped = min(time, self.seconds)
        return ramped * (self.start + self.rate(ramped)) / 2 + self.end * (time - ramped)

    def when(self, count: float) -> float:
        whole = self.expected(self.seconds)
        if count > whole:
            return self.seconds + (count - whole) / self.end
        # The root of slope t^2 / 2 + start t = count, in the form that also holds for a slope of zero.
        slope = (self.end - self.start) / self.seconds
        return 2 * count / (self.start + sqrt(self.start**2 + 2 * slope * count)) if count else 0.0


@dataclass(frozen=True)
class ExponentialRamp:
    """From `start` to `end` (both above 0 and different), by the same factor each second; then `end` for ever."""

    start: float
    end: float
    seconds: float

    @cached_property
    def _growth(self) -> float:
        return log(self.end / self.start) / self.seconds

    def rate(self, time: float) -> float:
        return self.end if time >= self.seconds else self.start * exp(self._growth * time)

    def expected(self, time: float) -> float:
        ramped = min(time, self.seconds)
        return (self.rate(ramped) - self.start) / self._growth + self.end * (time - ramped)

    def when(self, count: float) -> float:
        whole = self.expected(self.seconds)
        if count > whole:
            return self.seconds + (count - whole) / self.end
        return log1p(count * self._growth / self.start) / self._growth


@dataclass(frozen=True)
class Stages:
    """Constant rates one after the other, as (requests per second, seconds). A rate of 0 is a pause."""

    stages: tuple[tuple[float, float], ...]

    def rate(self, time: float) -> float:
        for rate, seconds in self.stages:
            if time < seconds:
                return rate
            time -= seconds
        return 0.0

    def expected(self, time: float) -> float:
        count = 0.0
        for rate, seconds in self.stages:
            count += rate * min(max(time, 0.0), seconds)
            time -= seconds
        return count

    def when(self, count: float) -> float:
        begun = 0.0
        for rate, seconds in self.stages:
            if count <= rate * seconds:
                return begun + (count / rate if rate else 0.0)
            count -= rate * seconds
            begun += seconds
        return inf


@dataclass(frozen=True)
class Sinus:
    """`mean` + `amplitude` sin(2 pi t / `period`); the amplitude is at most the mean, so that no rate is negative."""

    mean: float
    amplitude: float
    period: float

    def rate(self, time: float) -> float:
        return self.mean + self.amplitude * sin(2 * pi * time / self.period)

    def expected(self, time: float) -> float:
        wave = self.amplitude * self.period / (2 * pi) * (1 - cos(2 * pi * time / self.period))
        return self.mean * time + wave

    def when(self, count: float) -> float:
        # The wave adds between 0 and its whole height, which bounds the root; there is no closed form.
        low, high = max(0.0, (count - self.amplitude * self.period / pi) / self.mean), count / self.mean
        while high - low > 1e-9 * max(1.0, high):
            middle = (low + high) / 2
            low, high = (middle, high) if self.expected(middle) < count else (low, middle)
        return (low + high) / 2


def gaps(burstiness: float, draw: Random) -> Iterator[float]:
    """Gaps of mean 1 by the rule of `vllm bench serve`: Gamma(shape=burstiness, scale=1/burstiness).

    1 is a Poisson process, less is burstier, more is smoother, and inf is perfectly even.
    """
    while True:
        yield 1.0 if isinf(burstiness) else draw.gammavariate(burstiness, 1 / burstiness)


def arrivals(
    curve: RateCurve, burstiness: float, draw: Random, *, count: int | None = None, until: float = inf
) -> list[float]:
    """At most `count` send times before `until`. Raises ValueError if nothing would end them.

    Under a constant rate the times are stretched so that the last of `count` falls at count / rate, as vLLM does: the
    offered rate is then the one asked for, whatever was drawn.
    """
    if count is None and isinf(until) and not isinstance(curve, Stages):
        raise ValueError("a schedule needs a number of requests or a duration")
    sums: Iterator[float] = accumulate(gaps(burstiness, draw))
    if count is not None:
        drawn = [total for total, _ in zip(sums, range(count), strict=False)]
        if isinstance(curve, Constant) and drawn:
            stretch = count / drawn[-1]
            drawn = [total * stretch for total in drawn]
        sums = iter(drawn)
    times = []
    for total in sums:
        time = curve.when(total)
        if time >= until:
            break
        times.append(time)
    return times


def arrivals_by_index(rates: Sequence[float], burstiness: float, draw: Random) -> list[float]:
    """One send time for each of `rates`, the rate that holds when that request is due: vLLM's ramp.

    In time such a ramp is not what its name says: a rate that is linear in the index grows exponentially in time.
    """
    unit = gaps(burstiness, draw)
    return list(accumulate(next(unit) / rate for rate in rates))


def rates_by_index(strategy: str, start: float, end: float, count: int) -> list[float]:
    """`count` rates from `start` to `end`, "linear" or "exponential" in the request's index."""
    steps = max(count - 1, 1)
    if strategy == "linear":
        return [start + (end - start) * index / steps for index in range(count)]
    return [start * (end / start) ** (index / steps) for index in range(count)]


def trace(timestamps: Sequence[float], multiplier: float = 1.0) -> list[float]:
    """A trace's own times from its first request on, stretched by `multiplier` (2 is half as fast)."""
    first = min(timestamps, default=0.0)
    return sorted((timestamp - first) * multiplier for timestamp in timestamps)


def user_starts(users: int, ramp_up_seconds: float) -> list[float]:
    """When each of the users of a closed loop begins: spread evenly, so that their prefills do not coincide."""
    return [ramp_up_seconds * user / users for user in range(users)]


def ramp_seconds(strategy: str, start: float, end: float, count: int) -> float:
    """How long a ramp in time lasts that sends `count` requests by the moment it has reached `end`."""
    if strategy == "linear" or start == end:
        return 2 * count / (start + end)
    return count * log(end / start) / (end - start)


def ramp(strategy: str, start: float, end: float, seconds: float) -> RateCurve:
    if start == end:
        return Constant(end)
    return (LinearRamp if strategy == "linear" else ExponentialRamp)(start, end, seconds)


def rate_changes(times: Iterable[float], rate_at: Callable[[int, float], float]) -> list[RateChange]:
    """An event wherever the rate has reached another whole number since the request before, as vLLM logs them."""
    rates = [RateChange(time, rate_at(index, time)) for index, time in enumerate(times)]
    return rates[:1] + [new for old, new in pairwise(rates) if floor(new.rate) != floor(old.rate)]
