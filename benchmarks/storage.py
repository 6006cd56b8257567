"""From a run's result to rows and back. What was stored comes back equal, but for NUL characters in texts."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from benchmarks import summaries
from benchmarks.loadgen import metrics, records, verdict
from benchmarks.loadgen.sweep import RANGE, Place
from benchmarks.models import Origin, RequestRecord, Run, Status, TimeBucket
from benchmarks.models.runs import IMPORTED

BATCH_ROWS = 2000
# What a result changes in the row of its run.
MEASURED_FIELDS = (
    "started",
    "environment",
    "server",
    "server_samples",
    "client_health",
    "client_verdict",
    "rate_changes",
    "configuration",
    "summary",
)
# Fields of a record that its row has under the same name. The chunks are packed, beside the times of their ends.
PLAIN_FIELDS = [field for field in records.RequestRecord.__struct_fields__ if field != "chunks"]
TEXTS = ("error_text", "text", "finish_reason", "session")


def store_result(
    result: records.RunResult,
    run: Run | None = None,
    *,
    origin: Origin = Origin.TERMINAL,
    place: Place | None = None,
    before_batch: Callable[[], object] = lambda: None,
) -> int:
    """Store what a run measured, and return the primary key of its row.

    Without `run` a new row is made, all or nothing, which is over: done, cancelled, or failed with the words of
    `verdict`; `place` is where in a sweep it belongs. Else the row `run` gets the result and keeps its status: whoever
    executes it knows how it ended. Its records are stored batch by batch, so that neither its heartbeat nor what others
    write has to wait for all of them, and its summary comes last: without one, nothing counts as measured.
    `before_batch` is called before each of them, and may end it with an exception.
    """
    with nullcontext() if run else transaction.atomic():
        row = run or _finished_run(result, origin, place)
        if run is None:
            row.save()
        row.records.all().delete()
        row.buckets.all().delete()
        rows = _rows(row, result.records)
        while batch := list(islice(rows, BATCH_ROWS)):
            before_batch()
            RequestRecord.objects.bulk_create(batch)
        buckets = [TimeBucket(run=row, **bucket) for bucket in metrics.time_buckets(result.records)]
        before_batch()
        with transaction.atomic():
            TimeBucket.objects.bulk_create(buckets, batch_size=BATCH_ROWS)
            _set_measured(row, result)
            row.save(update_fields=[*MEASURED_FIELDS, *summaries.ALL_COLUMNS])
    return row.pk


def load_result(run_id: int, *, every: int = 1) -> records.RunResult:
    """The result of a stored run, with one record of `every` so many; 0 is none. Raises Run.DoesNotExist."""
    run = Run.objects.get(pk=run_id)
    kept = run.records.order_by("pk") if every else run.records.none()
    if every > 1:
        kept = kept.annotate(place=F("pk") % every).filter(place=0)
    health = run.client_health or {"verdict": "", "reasons": []}
    return records.RunResult(
        run_id=run.key,
        kind=run.kind,
        started_at=(run.started or run.created).isoformat(),
        duration=run.duration or 0.0,
        cancelled=run.status == Status.CANCELLED,
        profile=run.configuration.get("profile", {}),
        environment=run.environment,
        server=run.server,
        health=msgspec.convert(health, records.ClientHealth),
        rate_changes=msgspec.convert(run.rate_changes, list[records.RateChange]),
        summary=run.summary,
        records=[record_of(row) for row in kept.iterator(BATCH_ROWS)],
        server_samples=msgspec.convert(run.server_samples, list[records.ServerSample]),
    )


def record_of(row: RequestRecord) -> records.RequestRecord:
    plain = {name: getattr(row, name) for name in PLAIN_FIELDS}
    return msgspec.convert({**plain, "chunks": unpack_chunks(row.chunks)}, records.RequestRecord)


def pack_chunks(chunks: list[records.Chunk]) -> bytes:
    return msgspec.msgpack.encode(chunks)


def unpack_chunks(packed: bytes | memoryview) -> list[records.Chunk]:
    return msgspec.msgpack.decode(packed, type=list[records.Chunk])


def _finished_run(result: records.RunResult, origin: Origin, place: Place | None) -> Run:
    status, error = _ending(result)
    row = Run(
        key=result.run_id,
        kind=result.kind,
        origin=origin,
        status=status,
        error=error,
        finished=(parse_datetime(result.started_at) or timezone.now()) + timedelta(seconds=result.duration),
        tags=_json(result.profile.get("tags", [])),
    )
    if place and place.repeat != RANGE:
        row.series, row.sweep_value, row.repeat = place.series, place.value, place.repeat
        row.configuration = {"sweep_option": place.axis, "slos": _json(result.profile.get("goodput") or {})}
    return row


def _ending(result: records.RunResult) -> tuple[Status, str]:
    """How a run ended that nobody watched. Of one that another tool made only its figures are known."""
    if result.cancelled:
        return Status.CANCELLED, ""
    words = "" if result.kind == IMPORTED else verdict.failure(result).replace("\0", "")
    return (Status.FAILED, words) if words else (Status.DONE, "")


def _set_measured(row: Run, result: records.RunResult) -> None:
    row.started = parse_datetime(result.started_at) or row.started
    row.environment, row.server = _json(result.environment), _json(result.server)
    row.server_samples = _json(msgspec.to_builtins(result.server_samples))
    row.client_health = _json(msgspec.to_builtins(result.health))
    row.client_verdict = result.health.verdict
    row.rate_changes = _json(msgspec.to_builtins(result.rate_changes))
    row.configuration = {**row.configuration, "profile": _json(result.profile)}
    row.summary = _json(result.summary)
    for column, value in summaries.columns(row.summary).items():
        setattr(row, column, value)


def _rows(run: Run, found: Iterable[records.RequestRecord]) -> Iterator[RequestRecord]:
    for record in found:
        plain: dict[str, Any] = {name: getattr(record, name) for name in PLAIN_FIELDS}
        for name in TEXTS:  # PostgreSQL has no NUL in its texts
            plain[name] = plain[name] and plain[name].replace("\0", "")
        times = [chunk.time for chunk in record.chunks]
        yield RequestRecord(
            run=run,
            **plain,
            first_chunk=times[0] if times else None,
            last_chunk=times[-1] if times else None,
            chunks=pack_chunks(record.chunks),
        )


def _json(value: Any) -> Any:
    """The value without NaN and infinities, which PostgreSQL's JSON has not: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, str):
        return value.replace("\0", "")
    return value
