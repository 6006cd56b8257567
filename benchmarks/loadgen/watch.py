"""Looks at a load while it goes on: how it stands, and whether there is reason to end it."""

import time
from bisect import insort
from collections.abc import Callable

import msgspec

from benchmarks.loadgen.crew import Crew
from benchmarks.loadgen.messages import Progress
from benchmarks.loadgen.options import Profile
from benchmarks.loadgen.plan import Plan
from benchmarks.loadgen.saturation import Saturation

LEAST_ENDED = 20  # requests before their error rate says anything


class Live(msgspec.Struct, kw_only=True):
    """How a run stands. `output_tokens` and `ttft_p50_ms` are estimates from bytes, for a display.

    `state` is "preparing", "warming up" or "running"; `requests` is how many there will be, if that is known.
    """

    state: str = "preparing"
    elapsed: float = 0.0
    requests: int | None = None
    duration: float | None = None
    sent: int = 0
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    output_tokens: int = 0
    ttft_p50_ms: float | None = None


class Watch:
    """Its limits, its live figures, and whether it was cancelled."""

    crew: Crew

    def __init__(
        self, profile: Profile, plan: Plan, report: Callable[[Live], None], cancelled: Callable[[], bool]
    ) -> None:
        self.epoch: float | None = None
        self.ended_by = "schedule"  # or: duration, cancelled, max_errors, max_error_rate, over_saturation
        self.saturation = Saturation()
        self._profile = profile
        self._report = report
        self._cancelled = cancelled
        self._live = Live(requests=plan.requests, duration=profile.duration or None)
        self._progress: dict[int, Progress] = {}
        self._ttfts: list[float] = []
        self._ended = False

    def enter(self, state: str) -> None:
        self._live.state = state
        self._report(self._live)

    def on_progress(self, worker: int, progress: Progress) -> None:
        self._progress[worker] = progress
        for ttft in progress.ttfts:
            insort(self._ttfts, ttft)
        live, parts = self._live, self._progress.values()
        live.elapsed = max(0.0, time.monotonic() - self.epoch) if self.epoch else 0.0
        live.sent = sum(part.sent for part in parts)
        live.done = sum(part.done for part in parts)
        live.failed = sum(part.failed for part in parts)
        live.in_flight = max(0, live.sent - live.done - live.failed)
        live.output_tokens = sum(part.tokens for part in parts)
        live.ttft_p50_ms = 1000 * self._ttfts[len(self._ttfts) // 2] if self._ttfts else None
        self.saturation.add(live.elapsed, live.in_flight, progress.ttfts)
        self._report(live)

    def look(self) -> None:
        """End the load where there is reason to: once, in the order of what matters most."""
        if self._ended:
            return
        live, profile = self._live, self._profile
        ended = live.done + live.failed
        if self._cancelled():
            self._end("cancelled", grace=0.0)
        elif profile.max_errors is not None and live.failed >= profile.max_errors:
            self._end("max_errors")
        elif (
            profile.max_error_rate is not None
            and ended >= LEAST_ENDED
            and live.failed >= profile.max_error_rate * ended
        ):
            self._end("max_error_rate")
        elif profile.over_saturation == "stop" and self.saturation.since is not None:
            self._end("over_saturation")
        elif profile.duration and live.elapsed >= profile.duration:
            self.ended_by = "duration"  # the workers look at their own clocks

    def _end(self, reason: str, grace: float | None = None) -> None:
        self._ended = True
        self.ended_by = reason
        self.crew.stop(self._profile.grace if grace is None else grace)
