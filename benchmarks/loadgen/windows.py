"""Stretches of a run: which of its time counts, how many requests were in flight, and its single seconds."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import floor
from typing import Any

from benchmarks.loadgen.distribution import percentile
from benchmarks.loadgen.records import Phase, RequestRecord
from benchmarks.loadgen.request_metrics import first_arrival, last_arrival, token_arrivals, ttft

Window = tuple[float, float]  # seconds since the run's start


def run_window(records: Iterable[RequestRecord]) -> Window | None:
    """First send to last arrival of content; to the last failure where no content came at all."""
    begun = [record for record in records if record.sent is not None]
    ends = [end for record in begun if (end := last_arrival(record)) is not None]
    ends = ends or [record.done for record in begun if record.done is not None]
    if not ends:
        return None
    return min(record.sent for record in begun if record.sent is not None), max(ends)


def closed_loop_window(records: Iterable[RequestRecord]) -> Window | None:
    """From the first send of the user who began last to the last arrival of the user who was through first.

    None where that leaves nothing, or without users. The warm-up is left out.
    """
    users: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.user is not None and record.phase is not Phase.WARMUP:
            users[record.user].append(record)
    windows = [window for user in users.values() if (window := run_window(user)) is not None]
    if not windows:
        return None
    start, end = max(window[0] for window in windows), min(window[1] for window in windows)
    return (start, end) if start < end else None


def open_loop_window(measured: Sequence[RequestRecord], begins: float) -> Window | None:
    """From `begins`, or the first send of the measured requests where nothing comes ahead of them (0), to their last.

    None where no content arrives in it, as when all is sent at once: such a load is nothing but drain.
    """
    sends = [record.sent for record in measured if record.sent is not None]
    if not sends:
        return None
    window = (begins or min(sends), max(sends))
    arrives = any(contains(window, time) for record in measured for time, _ in token_arrivals(record))
    return window if arrives else None


def contains(window: Window, time: float | None) -> bool:
    return time is not None and window[0] <= time <= window[1]


def concurrency(records: Iterable[RequestRecord], window: Window) -> tuple[float | None, int]:
    """(mean, max) of requests in flight in the window: the mean is over time, None for a window of no length."""
    start, end = window
    changes: list[tuple[float, int]] = []
    for sent, done in _intervals(records, end):
        if done >= start and sent <= end:
            changes += [(max(sent, start), 1), (min(done, end), -1)]
    changes.sort()  # at the same instant the end of one request comes before the start of another
    in_flight = most = 0
    area, before = 0.0, start
    for time, change in changes:
        area += in_flight * (time - before)
        before = time
        in_flight += change
        most = max(most, in_flight)
    return (area / (end - start) if end > start else None), most


def time_buckets(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """The seconds of the run; the keys are in the description of `metrics`."""
    sent, done, failed = _Seconds(), _Seconds(), _Seconds()
    tokens, in_flight = _Seconds(), _Seconds()
    first_tokens: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.sent is not None:
            sent.add(record.sent)
        if record.done is not None:
            (done if record.succeeded else failed).add(record.done)
        for time, count in token_arrivals(record):
            tokens.add(time, count)
        wait, arrival = ttft(record), first_arrival(record)
        if wait is not None and arrival is not None:
            first_tokens[floor(arrival)].append(1000 * wait)
    seconds = {*sent.amounts, *done.amounts, *failed.amounts, *tokens.amounts}
    if not seconds:
        return []
    for start, end in _intervals(records, max(seconds) + 1.0):
        in_flight.spread(start, end)
    return [
        {
            "second": second,
            "sent": round(sent.amounts[second]),
            "done": round(done.amounts[second]),
            "failed": round(failed.amounts[second]),
            "tokens": round(tokens.amounts[second], 3),
            "in_flight": round(in_flight.amounts[second], 3),
            **_first_token_figures(sorted(first_tokens[second])),
        }
        for second in range(min(seconds), max(seconds) + 1)
    ]


def peak_tokens(records: Iterable[RequestRecord]) -> float | None:
    """Most output tokens that arrived in one second, the seconds counted from the run's start."""
    tokens = _Seconds()
    for record in records:
        for time, count in token_arrivals(record):
            tokens.add(time, count)
    return max(tokens.amounts.values(), default=None)


class _Seconds:
    """An amount for each whole second."""

    def __init__(self) -> None:
        self.amounts: dict[int, float] = defaultdict(float)

    def add(self, time: float, amount: float = 1.0) -> None:
        self.amounts[floor(time)] += amount

    def spread(self, start: float, end: float) -> None:
        """Add to each second the part of it that lies between `start` and `end`."""
        for second in range(floor(start), floor(end) + 1):
            self.amounts[second] += min(end, second + 1) - max(start, second)


def _intervals(records: Iterable[RequestRecord], now: float) -> Iterator[Window]:
    """When each request was in flight; one that never ended still is."""
    for record in records:
        if record.sent is not None:
            yield record.sent, now if record.done is None else record.done


def _first_token_figures(ordered: Sequence[float]) -> dict[str, float | None]:
    return {
        "ttft_p50_ms": percentile(ordered, 500) if ordered else None,
        "ttft_p99_ms": percentile(ordered, 990) if ordered else None,
    }
