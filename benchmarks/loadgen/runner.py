"""A whole run: plan, workers, and the result. Nothing here knows a database or a terminal."""

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec

from benchmarks.loadgen import audio, datasets, environment, metrics, probe, server_samples
from benchmarks.loadgen.crew import Crew
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.health import CLIENT_LIMITED, client_health
from benchmarks.loadgen.messages import Report
from benchmarks.loadgen.options import Profile, frozen
from benchmarks.loadgen.phases import assign_phases
from benchmarks.loadgen.plan import Plan, first_prompt, make_plan, make_tasks, ready_prompt
from benchmarks.loadgen.records import ClientHealth, RequestRecord, RunResult
from benchmarks.loadgen.sends import achieved_send_ratio
from benchmarks.loadgen.target import Target, find_backend, make_request, make_target
from benchmarks.loadgen.watch import Live, Watch

SPARE_FILES = 64  # open files of a worker that are no streams


class Load(msgspec.Struct, frozen=True):
    """What came back from the workers. `lost` are those that died; `profiler` is what `_profiling` told."""

    started_at: datetime
    workers: int
    reports: list[Report]
    lost: list[int]
    profiler: dict[str, str]

    @property
    def records(self) -> list[RequestRecord]:
        found = (record for report in self.reports for record in report.records)
        return sorted(found, key=lambda record: record.index)


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
    run_id = run_id or uuid4().hex
    plan, target = _prepare(profile, run_id)
    before = asyncio.run(probe.inspect(target))
    watch = Watch(profile, plan, report, cancelled)
    with server_samples.sampled(target, before.get("metrics", {})) as samples:
        load = _generate(profile, plan, target, run_id, watch)
    records = load.records
    window = assign_phases(records, profile, plan.ramp_seconds)
    summary = metrics.summarise(records, slos=profile.goodput or None, window=window, stall_ms=profile.stall_ms)
    heard = sum(report.audio_seconds for report in load.reports)
    return RunResult(
        run_id=run_id,
        kind=kind,
        started_at=load.started_at.isoformat(),
        duration=summary["duration_s"] or 0.0,
        cancelled=watch.ended_by == "cancelled",
        profile=frozen(profile),
        environment=_environment(profile, plan, load, watch),
        server={"model": target.options.model, "before": before, "after": asyncio.run(probe.inspect(target))},
        health=_judge(profile, plan, records, load, watch.ended_by),
        rate_changes=plan.rate_changes,
        summary=summary | audio.figures(heard, summary["duration_s"]),
        records=records,
        server_samples=server_samples.since(samples, watch.epoch or 0.0),
    )


def _prepare(profile: Profile, run_id: str) -> tuple[Plan, Target]:
    """What to send to whom, once it is certain that it can be sent. Raises BadOption and probe.NotReady."""
    _check_goodput(profile)
    plan = make_plan(profile)
    target = _find_target(profile, run_id)
    first = first_prompt(profile, plan)
    _check_prompt(target, first)
    _check_open_files(profile, plan)
    if profile.ready_check_timeout_sec:
        asyncio.run(probe.wait_until_ready(target, ready_prompt(first, run_id), profile.ready_check_timeout_sec))
    return plan, target


def _generate(profile: Profile, plan: Plan, target: Target, run_id: str, watch: Watch) -> Load:
    """The warm-up and the load, from the workers' start to their reports. Raises BadOption."""
    tasks = make_tasks(profile, plan, target, run_id)
    with Crew(tasks, watch.on_progress, watch.look) as crew:
        watch.crew = crew
        watch.enter("warming up" if plan.warmups else "preparing")
        crew.get_ready()
        with _profiling(profile, target) as profiler:
            started_at = datetime.now(UTC)
            watch.epoch = crew.start()
            watch.enter("running")
            reports = crew.finish()
    return Load(started_at, len(tasks), reports, crew.lost, profiler)


@contextmanager
def _profiling(profile: Profile, target: Target) -> Iterator[dict[str, str]]:
    """Have the servers profile the block, and stop whatever happens in it. Raises BadOption where one does not begin.

    Behind the block, `profiler` in what it gives says how they stopped; it is empty where nobody asked for a profile.
    """
    told: dict[str, str] = {}
    if not profile.profile:
        yield told
        return
    try:
        if problem := asyncio.run(probe.profiler(target, "start")):
            raise BadOption(problem)
        yield told
    finally:
        told["profiler"] = asyncio.run(probe.profiler(target, "stop")) or "stopped"


def _environment(profile: Profile, plan: Plan, load: Load, watch: Watch) -> dict[str, Any]:
    """Where and how the load was made: what a reader needs to make it again."""
    return {
        **environment.describe(),
        "workers": load.workers,
        "dataset": datasets.describe(profile, plan.items),
        "ended_by": watch.ended_by,
        "over_saturated_since": watch.saturation.since,
        **load.profiler,
    }


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


def _judge(profile: Profile, plan: Plan, records: list[RequestRecord], load: Load, ended_by: str) -> ClientHealth:
    """The client's verdict. A load that bounds or ends itself early did not promise any rate, and one that sends all
    at once no times."""
    at_once = bool(plan.times) and plan.times[-1] == 0.0
    promises_rate = bool(plan.times) and profile.max_concurrency is None and ended_by in ("schedule", "duration")
    health = client_health(
        send_lags=[] if at_once else [lag for part in load.reports for lag in part.send_lags],
        loop_lags=[lag for part in load.reports for lag in part.loop_lags],
        achieved_send_ratio=achieved_send_ratio(records) if promises_rate else None,
        cpu_percents=[part.cpu_percent for part in load.reports],
    )
    reasons = [*health.reasons, *(f"worker {worker} died, and its records with it" for worker in load.lost)]
    return msgspec.structs.replace(health, reasons=reasons, verdict=CLIENT_LIMITED) if load.lost else health
