"""A whole run: plan, workers, limits, live figures, and the result. Nothing here knows a database or a terminal."""

import asyncio
import resource
import time
from bisect import insort
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import msgspec

from benchmarks.loadgen import audio, datasets, environment, metrics, probe
from benchmarks.loadgen.crew import Crew
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.health import CLIENT_LIMITED, client_health
from benchmarks.loadgen.messages import Progress, Report
from benchmarks.loadgen.options import Profile, frozen
from benchmarks.loadgen.phases import assign_phases
from benchmarks.loadgen.plan import Plan, first_prompt, make_plan, make_tasks, ready_prompt
from benchmarks.loadgen.records import ClientHealth, RequestRecord, RunResult
from benchmarks.loadgen.saturation import Saturation
from benchmarks.loadgen.sends import achieved_send_ratio
from benchmarks.loadgen.target import Target, find_backend, make_request, make_target

LEAST_ENDED = 20  # requests before their error rate says anything
SPARE_FILES = 64  # open files of a worker that are no streams


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


def run(
    profile: Profile,
    *,
    kind: str,
    run_id: str = "",
    report: Callable[[Live], None] = lambda live: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Generate the load and measure it. `kind` is serve, clients or multiturn.

    `report` hears how it stands several times a second. Once `cancelled()` is true running requests are given up, and
    the result holds what there was. Raises BadOption, and probe.NotReady if the server does not answer in time.
    """
    _check_goodput(profile)
    run_id = run_id or uuid4().hex
    plan = make_plan(profile)
    target = _find_target(profile, run_id)
    first = first_prompt(profile, plan)
    _check_prompt(target, first)
    _check_open_files(profile, plan)
    if profile.ready_check_timeout_sec:
        asyncio.run(probe.wait_until_ready(target, ready_prompt(first, run_id), profile.ready_check_timeout_sec))
    before = asyncio.run(probe.inspect(target))
    watch = _Watch(profile, plan, report, cancelled)
    tasks = make_tasks(profile, plan, target, run_id)
    with Crew(tasks, watch.on_progress, watch.look) as crew:
        watch.crew = crew
        watch.enter("warming up" if plan.warmups else "preparing")
        crew.get_ready()
        if profile.profile and (problem := asyncio.run(probe.profiler(target, "start"))):
            raise BadOption(problem)
        started_at = datetime.now(UTC)
        watch.epoch = crew.start()
        watch.enter("running")
        reports = crew.finish()
    profiled = asyncio.run(probe.profiler(target, "stop")) if profile.profile else None
    records = sorted((record for part in reports for record in part.records), key=lambda record: record.index)
    window = assign_phases(records, profile, plan.ramp_seconds)
    summary = metrics.summarise(records, slos=profile.goodput or None, window=window, stall_ms=profile.stall_ms)
    return RunResult(
        run_id=run_id,
        kind=kind,
        started_at=started_at.isoformat(),
        duration=summary["duration_s"] or 0.0,
        cancelled=watch.ended_by == "cancelled",
        profile=frozen(profile),
        environment={
            **environment.describe(),
            "workers": len(tasks),
            "dataset": datasets.describe(profile, plan.items),
            "ended_by": watch.ended_by,
            "over_saturated_since": watch.saturation.since,
            **({} if profiled is None else {"profiler": profiled or "stopped"}),
        },
        server={
            "model": target.options.model,
            "before": before,
            "after": asyncio.run(probe.inspect(target)),
        },
        health=_judge(profile, plan, records, reports, crew.lost, watch.ended_by),
        rate_changes=plan.rate_changes,
        summary=summary | audio.figures(sum(part.audio_seconds for part in reports), summary["duration_s"]),
        records=records,
    )


class _Watch:
    """Looks at a run while it goes on: its limits, its live figures, and whether it was cancelled."""

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


def _find_target(profile: Profile, run_id: str) -> Target:
    """With the server's first model where none was given. Raises BadOption."""
    target = make_target(profile, run_id=run_id, synthetic=profile.dataset_name in datasets.SYNTHETIC)
    if target.options.model:
        return target
    model = asyncio.run(probe.find_model(target))
    return msgspec.structs.replace(target, options=msgspec.structs.replace(target.options, model=model))


def _check_goodput(profile: Profile) -> None:
    try:
        metrics.summarise([], slos=profile.goodput)
    except ValueError as error:
        raise BadOption(f"--goodput: {error}") from None


def _check_prompt(target: Target, prompt: Prompt) -> None:
    try:
        make_request(target, find_backend(target.backend, target.template), prompt, 0)
    except ValueError as error:
        raise BadOption(f"--dataset-name: {error}") from None


def _check_open_files(profile: Profile, plan: Plan) -> None:
    """Each stream is a socket. Raises BadOption before the load rather than failing within it."""
    streams = profile.max_concurrency or len(plan.users) or len(plan.times)
    at_once = bool(plan.users or profile.max_concurrency or plan.times[-1] == 0.0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if at_once and most != resource.RLIM_INFINITY and streams + SPARE_FILES > most:
        raise BadOption(f"--max-concurrency: {streams} streams at once need more open files than {most} (ulimit -Hn)")


def _judge(
    profile: Profile,
    plan: Plan,
    records: list[RequestRecord],
    reports: list[Report],
    lost: list[int],
    ended_by: str,
) -> ClientHealth:
    """The client's verdict. A load that bounds or ends itself early did not promise any rate, and one that sends all
    at once no times."""
    at_once = bool(plan.times) and plan.times[-1] == 0.0
    promises_rate = bool(plan.times) and profile.max_concurrency is None and ended_by in ("schedule", "duration")
    health = client_health(
        send_lags=[] if at_once else [lag for part in reports for lag in part.send_lags],
        loop_lags=[lag for part in reports for lag in part.loop_lags],
        achieved_send_ratio=achieved_send_ratio(records) if promises_rate else None,
        cpu_percents=[part.cpu_percent for part in reports],
    )
    reasons = [*health.reasons, *(f"worker {worker} died, and its records with it" for worker in lost)]
    return msgspec.structs.replace(health, reasons=reasons, verdict=CLIENT_LIMITED) if lost else health
