"""How long rows wait for their first token, as the engine sees it."""

import threading
import time
from collections import deque
from collections.abc import Iterable
from statistics import quantiles

from inference.bus.messages import Generate, RowOutput

WINDOW_SECONDS = 60.0
MOST_TIMES = 2_000  # of one window: the newest


class FirstTokens:
    """Times to first token (TTFT) of the last minute, from a request's creation to its token's leaving the engine.

    The step loop calls `expect` and `see`; `percentiles` may be called from another thread. Rows that go on
    behind delivered tokens had their first one before, and are not counted.
    """

    def __init__(self) -> None:
        self._created: dict[tuple[str, int], float] = {}
        self._times: deque[tuple[float, float]] = deque(maxlen=MOST_TIMES)  # (when, TTFT), both in seconds
        self._lock = threading.Lock()

    def expect(self, request: Generate) -> None:
        if request.created and not request.generated:
            self._created[request.web, request.row] = request.created

    def see(self, outputs: Iterable[tuple[str, RowOutput]]) -> None:
        """One step's outputs, given as (web process, output)."""
        for web, output in outputs:
            if output.position and not output.finish:
                continue
            created = self._created.pop((web, output.row), None)
            if created is not None and output.tokens:
                with self._lock:
                    self._times.append((time.monotonic(), max(0.0, time.time() - created)))

    def percentiles(self) -> tuple[float | None, float | None]:
        """(p50, p99) in ms, None when there was no first token in the window."""
        begin = time.monotonic() - WINDOW_SECONDS
        with self._lock:
            while self._times and self._times[0][0] < begin:
                self._times.popleft()
            waits = [1000 * wait for _, wait in self._times]
        if len(waits) < 2:
            return (waits[0], waits[0]) if waits else (None, None)
        cuts = quantiles(waits, n=100, method="inclusive")
        return cuts[49], cuts[98]
