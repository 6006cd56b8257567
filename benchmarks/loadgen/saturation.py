"""Whether a server is offered more than it can take: requests in flight and TTFT that only grow.

Both slopes over a window are tested against chance; a server that is merely slow has a flat line.
"""

from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import median

import msgspec

WINDOW_SECONDS = 120.0
LEAST_SECONDS = 30.0
LEAST_TTFT_SECONDS = 2.5  # below, nobody minds
LEAST_SAMPLES = 20
# Student's t for 95% one-sided and 18 or more degrees of freedom.
T_LIMIT = 1.734


class Saturation(msgspec.Struct):
    """Fed with samples (time, requests in flight, TTFT in seconds); `since` is when it was first seen."""

    since: float | None = None
    _samples: deque[tuple[float, float, float]] = msgspec.field(default_factory=deque)

    def add(self, time: float, in_flight: int, ttfts: Sequence[float]) -> None:
        """`ttfts` are those since the sample before; without any there is none."""
        if not ttfts:
            return
        self._samples.append((time, float(in_flight), median(ttfts)))
        while time - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()
        if self.since is None and self._grows():
            self.since = time

    def _grows(self) -> bool:
        times = [time for time, _, _ in self._samples]
        ttfts = [ttft for _, _, ttft in self._samples]
        if len(times) < LEAST_SAMPLES or times[-1] - times[0] < LEAST_SECONDS or ttfts[-1] < LEAST_TTFT_SECONDS:
            return False
        flights = [flight for _, flight, _ in self._samples]
        return slope_t(times, flights) > T_LIMIT and slope_t(times, ttfts) > T_LIMIT


def slope_t(x: Sequence[float], y: Sequence[float]) -> float:
    """Student's t of the least-squares slope: the slope over its standard error. Needs three different x."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    spread = sum((value - mean_x) ** 2 for value in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    residual = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    error = sqrt(residual / (n - 2) / spread)
    return slope / error if error else (float("inf") if slope > 0 else 0.0)
