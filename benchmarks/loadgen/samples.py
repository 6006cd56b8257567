"""The single values behind a figure: of requests, or of seconds for throughputs, in blocks of neighbours.

Neighbours in time see the same load, so that a block of them is what chance may leave out or take twice.
"""

from benchmarks.loadgen import metrics
from benchmarks.loadgen.chance import Sample
from benchmarks.loadgen.figures import Figure
from benchmarks.loadgen.records import Phase, RequestRecord, RunResult
from benchmarks.loadgen.request_metrics import SPEEDS

MOST_BLOCKS = 200
FEWEST_BLOCKS = 8  # fewer say too little of their own scatter
SECONDS_OF_A_BLOCK = 2
BUCKETS = {"request_throughput": "done", "output_throughput": "tokens"}


def samples(result: RunResult, figure: Figure) -> list[Sample]:
    """(block, value) pairs; empty where there are too few, or the figure is no statistic of single values."""
    found: list[Sample] = []
    if figure.metric in BUCKETS:
        found = _of_seconds(result, BUCKETS[figure.metric])
    elif figure.metric == "success_rate":
        found = _in_blocks([[float(one.succeeded)] for one in result.records if one.phase is not Phase.WARMUP])
    elif figure.statistic:
        found = _in_blocks(_by_request(result, figure.metric))
    return found if len({block for block, _ in found}) >= FEWEST_BLOCKS else []


def values(result: RunResult, metric: str) -> list[float]:
    """All values of a latency or speed over the measured requests, as its statistics are made from."""
    return [value for one in _by_request(result, metric) for value in one]


def _by_request(result: RunResult, metric: str) -> list[list[float]]:
    family = "speed" if metric in SPEEDS else "latency_ms"
    return [found for one in _measured(result) if (found := metrics.values_of(one)[family].get(metric))]


def _measured(result: RunResult) -> list[RequestRecord]:
    measured = [one for one in result.records if one.phase is Phase.MEASURE and one.succeeded]
    return sorted(measured, key=lambda one: one.sent or 0.0)


def _in_blocks(requests: list[list[float]]) -> list[Sample]:
    size = -(-len(requests) // MOST_BLOCKS)
    return [(place // size, value) for place, found in enumerate(requests) for value in found]


def _of_seconds(result: RunResult, key: str) -> list[Sample]:
    """Only seconds that lie in the measured window as a whole."""
    start, end = result.summary.get("window") or (0.0, 0.0)
    inside = [one for one in metrics.time_buckets(result.records) if start <= one["second"] <= end - 1]
    return [(place // SECONDS_OF_A_BLOCK, float(one[key])) for place, one in enumerate(inside)]
