"""The figures of a summary by name: where they are, their unit, and which direction is good.

A latency or speed has a statistic behind a dot (`ttft.p99`, `decode_tps_user.median`); all others stand alone
(`output_throughput`, `success_rate`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.loadgen.distribution import PERMILLES
from benchmarks.loadgen.metrics import LATENCIES
from benchmarks.loadgen.request_metrics import SPEEDS

STATISTICS = ("mean", "median", "std", "min", "max", *PERMILLES)

# What a comparison shows unless it is asked for something else.
USUAL = (
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "success_rate",
    "goodput",
    "ttft.median",
    "ttft.p99",
    "ttft_sched.p99",
    "tpot.median",
    "tpot.p99",
    "itl.p99",
    "e2el.median",
    "e2el.p99",
)


@dataclass(frozen=True)
class Figure:
    """`metric` and `statistic` are the two halves of the name; statistic is empty where there is none."""

    name: str
    metric: str
    statistic: str
    unit: str
    more_is_better: bool


# name: (unit, place in the summary). More of every one of these is better.
_PLAIN = {
    "request_throughput": ("requests/s", ("request_throughput",)),
    "output_throughput": ("tokens/s", ("output_throughput",)),
    "input_throughput": ("tokens/s", ("input_throughput",)),
    "total_token_throughput": ("tokens/s", ("total_token_throughput",)),
    "peak_output_throughput": ("tokens/s", ("peak_output_throughput",)),
    "success_rate": ("share", ("success_rate",)),
    "goodput": ("share", ("goodput", "fraction")),
    "goodput_rate": ("requests/s", ("goodput", "per_second")),
}


def figure(name: str) -> Figure:
    """Raises ValueError for a name that no summary has."""
    if name in _PLAIN:
        return Figure(name, name, "", _PLAIN[name][0], more_is_better=True)
    metric, _, statistic = name.partition(".")
    if metric not in (*LATENCIES, *SPEEDS):
        known = ", ".join((*_PLAIN, *LATENCIES, *SPEEDS))
        raise ValueError(f"metric: {name!r} is not known; it is one of {known}, the latter with a statistic")
    if statistic not in STATISTICS:
        raise ValueError(f"metric: {name!r} needs a statistic, such as {metric}.median: {', '.join(STATISTICS)}")
    fast = metric in SPEEDS
    return Figure(name, metric, statistic, "tokens/s" if fast else "ms", more_is_better=fast)


def value(summary: Mapping[str, Any], name: str) -> float | None:
    """The figure in a summary, None where the run has none. Of two windows the measured one counts.

    Raises ValueError for a name that no summary has.
    """
    one = figure(name)
    if one.statistic:
        family = summary.get("speed" if one.metric in SPEEDS else "latency_ms") or {}
        statistic: float | None = (family.get(one.metric) or {}).get(one.statistic)
        return statistic
    found: Any = summary
    for key in _PLAIN[name][1]:
        found = (found or {}).get(key)
    if isinstance(found, Mapping):
        found = found.get("full") if found.get("measured") is None else found["measured"]
    return None if found is None else float(found)
