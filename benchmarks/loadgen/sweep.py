"""The points of a sweep: where to measure, and where more load brings no more throughput but only latency."""

from collections.abc import Sequence
from itertools import groupby
from random import Random
from statistics import fmean
from typing import TypeVar

import msgspec

from benchmarks.loadgen import figures
from benchmarks.loadgen.records import RunResult

Item = TypeVar("Item")

AXES = ("request_rate", "max_concurrency", "users")
MEANS = (
    "request_throughput",
    "output_throughput",
    "success_rate",
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "e2el_mean",
)
RANGE = 0  # the repeat of a run that only looks for the range of a sweep, and is none of its points


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which run of a sweep one is: what tells it from the others, and keeps it together with its repeats."""

    series: str  # of all runs of the sweep
    axis: str
    value: float
    repeat: int  # from 1 on

    @property
    def name(self) -> str:
        """For a file of its own."""
        return f"range-{self.axis}-{self.value:g}" if self.repeat == RANGE else f"{self.value:g}-{self.repeat}"

    def label(self, given: str) -> str:
        """Of the point: only its repeats share it. `given` is the label of the whole sweep, if it has one."""
        looks = " (range)" if self.repeat == RANGE else ""
        return f"{given or self.series} {self.axis}={self.value:g}{looks}"

    def prompt_seed(self, seed: int) -> int:
        """Another for each run, or the server would answer the second one from what it kept of the first."""
        return Random(f"{seed}/{self.axis}/{self.value!r}/{self.repeat}").getrandbits(31)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One load of a sweep. Throughputs are per second of the measured window, latencies in ms."""

    value: float  # on the sweep's axis
    run_id: str
    request_throughput: float
    output_throughput: float
    success_rate: float
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    e2el_mean: float | None
    goodput: float | None  # share of good requests, 0 to 1
    client: str


def point(value: float, result: RunResult) -> Point:
    summary = result.summary
    latency, goodput = summary["latency_ms"], summary["goodput"]
    return Point(
        value=value,
        run_id=result.run_id,
        request_throughput=figures.value(summary, "request_throughput") or 0.0,
        output_throughput=figures.value(summary, "output_throughput") or 0.0,
        success_rate=summary["success_rate"] or 0.0,
        ttft_p50=latency["ttft"]["median"],
        ttft_p99=latency["ttft"]["p99"],
        tpot_p50=latency["tpot"]["median"],
        e2el_mean=latency["e2el"]["mean"],
        goodput=goodput["fraction"] if goodput else None,
        client=result.health.verdict,
    )


def spread(low: float, high: float, count: int, *, whole: bool) -> list[float]:
    """`count` evenly spaced values from `low` to `high`, without equal ones where they must be `whole`."""
    step = (high - low) / max(count - 1, 1)
    values = [low + step * index for index in range(count)]
    return sorted({float(max(1, round(value))) for value in values}) if whole else values


def highest_concurrency(saturated: Point) -> float:
    """Little's law: requests at once that a server holds at its highest throughput."""
    return saturated.request_throughput * (saturated.e2el_mean or 0.0) / 1000


def in_random_order(values: Sequence[Item], seed: int) -> list[Item]:
    """A machine that gets warmer or slower in the meantime must not look like an effect of the load."""
    return Random(f"{seed}/sweep").sample(list(values), len(values))


def by_load(points: Sequence[Point]) -> list[Point]:
    """A point for each value in ascending order: the means over its repeats, but of goodput the worst of them."""
    return [_merged(list(repeats)) for _, repeats in groupby(sorted(points, key=_value), key=_value)]


def knee(points: Sequence[Point]) -> Point | None:
    """Where the curve of throughput over latency bends: the point farthest above the straight line from its first to
    its last, both scaled to 1. None for fewer than three points, or where none is above. Repeats of a value are one
    point (see `by_load`).
    """
    curve = [one for one in by_load(points) if one.e2el_mean is not None]
    if len(curve) < 3:
        return None
    latencies = _scaled([one.e2el_mean or 0.0 for one in curve])
    rates = _scaled([one.output_throughput for one in curve])
    heights = [rate - latency for rate, latency in zip(rates, latencies, strict=True)]
    best = max(range(len(curve)), key=heights.__getitem__)
    return curve[best] if heights[best] > 0 else None


def highest_good(points: Sequence[Point], least_share: float) -> Point | None:
    """The largest load of which, and of every smaller one, that share of requests kept the limits in each repeat."""
    best = None
    for one in by_load(points):
        if one.goodput is None or one.goodput < least_share:
            break
        best = one
    return best


def _value(one: Point) -> float:
    return one.value


def _merged(repeats: Sequence[Point]) -> Point:
    if len(repeats) == 1:
        return repeats[0]
    means: dict[str, float | None] = {}
    for name in MEANS:
        known = [value for one in repeats if (value := getattr(one, name)) is not None]
        means[name] = fmean(known) if known else None
    goodput = min((one.goodput for one in repeats if one.goodput is not None), default=None)
    return msgspec.structs.replace(repeats[0], **means, goodput=goodput)


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]
