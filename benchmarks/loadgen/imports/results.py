"""A run out of what a foreign file knows. What it does not know is None: nothing is filled in."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.loadgen import metrics
from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.records import ClientHealth, RateChange, RequestRecord, RunResult

KIND = "imported"
Statistics = dict[str, float | None]


class Throughputs(msgspec.Struct, kw_only=True, frozen=True):
    """Per second of the whole run."""

    requests: float | None = None
    input: float | None = None
    output: float | None = None
    total: float | None = None


class Known(msgspec.Struct, kw_only=True, frozen=True):
    """The figures that other tools write, in our units. Percentages and goodput are shares from 0 to 1."""

    duration: float | None = None
    completed: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    throughputs: Throughputs = Throughputs()
    peak_output_throughput: float | None = None
    concurrency_mean: float | None = None
    concurrency_max: float | None = None
    goodput_per_second: float | None = None
    goodput_fraction: float | None = None
    rtfx: float | None = None
    input_length: Statistics = {}
    output_length: Statistics = {}
    latency_ms: dict[str, Statistics] = {}
    speed: dict[str, Statistics] = {}


def imported(
    source: Fields,
    format_name: str,
    known: Known,
    *,
    started: datetime | None = None,
    model: str | None = None,
    profile: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    rate_changes: Sequence[RateChange] = (),
    records: Sequence[RequestRecord] = (),
    cancelled: bool = False,
) -> RunResult:
    """The run. With records its summary is made from them, else from what is known; what no record tells is known.

    Its id follows from the content, so that the same run imported twice is seen to be the same. Where the file says
    no time, the run is given the file's own.
    """
    digest = hashlib.sha256(msgspec.json.encode(source.values, order="sorted")).hexdigest()
    moment = started or datetime.fromtimestamp(Path(source.file).stat().st_mtime, UTC)
    summary = metrics.summarise(records) | _beside_records(known) if records else summary_of(known)
    return RunResult(
        run_id=f"{KIND}-{format_name}-{digest[:12]}",
        kind=KIND,
        started_at=moment.isoformat(),
        duration=summary["duration_s"] or 0.0,
        cancelled=cancelled,
        profile={
            **{name: value for name, value in profile.items() if value is not None},
            "source": {"format": format_name, "file": Path(source.file).name},
        },
        environment=dict(environment or {}),
        server={"model": model} if model else {},
        health=ClientHealth(verdict="unknown", reasons=["imported: nothing is known of the client"]),
        rate_changes=list(rate_changes),
        summary=summary,
        records=list(records),
    )


def summary_of(known: Known) -> dict[str, Any]:
    """A summary with all of the keys that `metrics.summarise` gives."""
    ended = None if known.completed is None or known.failed is None else known.completed + known.failed
    per_second = known.throughputs
    return {
        "duration_s": known.duration,
        "window": None,
        "window_s": None,
        "requests": {
            "total": ended,
            "completed": known.completed,
            "failed": known.failed,
            "cancelled": known.cancelled,
            "warmup": None,
            "measured": None,
        },
        "success_rate": (known.completed or 0) / ended if ended else None,
        "errors": {},
        "request_throughput": _full(per_second.requests),
        "output_throughput": _full(per_second.output),
        "input_throughput": _full(per_second.input),
        "total_token_throughput": _full(per_second.total),
        "peak_output_throughput": known.peak_output_throughput,
        "concurrency": {"mean": known.concurrency_mean, "max": known.concurrency_max},
        "achieved_send_ratio": None,
        "goodput": None,
        "tokens": {"input": known.input_tokens, "output": known.output_tokens, "reasoning": None, "cached": None},
        "input_token_sources": {},
        "output_token_sources": {},
        "chunk_estimated": None,
        "input_length": known.input_length or None,
        "output_length": known.output_length or None,
        "latency_ms": known.latency_ms,
        "speed": known.speed,
        "stalls": None,
        **_beside_records(known),
    }


def _beside_records(known: Known) -> dict[str, Any]:
    """The figures that do not follow from records: what a good request was, and how long audio lasted."""
    found: dict[str, Any] = {}
    if known.goodput_per_second is not None or known.goodput_fraction is not None:
        found["goodput"] = {
            "slos": {},
            "good": None,
            "fraction": known.goodput_fraction,
            "per_second": known.goodput_per_second,
        }
    if known.rtfx is not None:
        found["rtfx"] = known.rtfx
    return found


def latencies(source: Fields, names: Mapping[str, str], suffix: str) -> dict[str, Statistics]:
    """{our metric: statistics} from fields such as `p99_ttft_ms`; `names` is {their metric: ours}."""
    pattern = re.compile(rf"(mean|median|std|min|max|p[\d.]+)_({'|'.join(names)}){suffix}")
    found: dict[str, Statistics] = {}
    for field in source.values:
        if match := pattern.fullmatch(field):
            found.setdefault(names[match[2]], {})[match[1]] = source.number(field)
    return found


def _full(value: float | None) -> dict[str, float | None]:
    return {"full": value, "measured": None}
