"""Runs one job under a lease, from the check of its input to its files.

Each status has one step, and every step can be cut off anywhere: what it has to know is in the
database, so the next runner goes on from there.
"""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence

import msgspec
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from inference.batches import results
from inference.batches.lines import Checked, InputError, RequestLine, check_input, decode_line, read_lines
from inference.batches.models import BatchJob, BatchLine, Status
from inference.batches.sender import CONCURRENCY, Answer, LineError, ask, open_session

log = logging.getLogger(__name__)

STORE_SECONDS = 0.5  # how often answers are stored, and how soon a cancellation is seen

EXPIRED = LineError("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = LineError("batch_cancelled", "This request was not executed because the batch was cancelled.")


def run(job: BatchJob, stopping: threading.Event) -> None:
    """Advance the job until it is over, or `stopping` is set. Raises LeaseLost, KeyRefused."""
    while job.is_open and not stopping.is_set():
        if job.status == Status.CANCELLING:
            _end(job, Status.CANCELLED, CANCELLED, cancelled_at=timezone.now())
        elif job.status == Status.FINALIZING:
            _end(job, Status.COMPLETED, None, completed_at=timezone.now())
        elif job.is_past_its_window:
            _end(job, Status.EXPIRED, EXPIRED, expired_at=timezone.now())
        elif job.status == Status.VALIDATING:
            _validate(job)
        else:
            async_to_sync(_answer_lines)(job, stopping)
    log.info("batch %s: %s, %d of %d lines answered", job.key, job.status, job.completed + job.failed, job.total)


def _validate(job: BatchJob) -> None:
    now = timezone.now()
    try:
        checked = check_input(job.input_file.path, job.endpoint)
    except FileNotFoundError:
        checked = Checked(errors=[InputError("file_not_found", "the input file's content is gone")])
    if checked.errors:
        errors = [msgspec.to_builtins(error) for error in checked.errors]
        job.write(Status.VALIDATING, status=Status.FAILED, failed_at=now, errors=errors)
    else:
        started = {"status": Status.IN_PROGRESS, "in_progress_at": now}
        job.write(Status.VALIDATING, total=checked.total, model=checked.model, **started)


async def _answer_lines(job: BatchJob, stopping: threading.Event) -> None:
    """Send every line that has no answer yet, CONCURRENCY at one time, and store what comes."""
    requests = await sync_to_async(_unanswered)(job)
    answers: list[Answer] = []

    async def work() -> None:
        for number, request in requests:  # shared: each of the workers takes the next line
            answers.append(await ask(session, number, request, job.owner))

    async with open_session() as session:
        workers = [asyncio.create_task(work()) for _ in range(CONCURRENCY)]
        running = set(workers)
        try:
            while running and not stopping.is_set() and not job.is_past_its_window:
                ended, running = await asyncio.wait(running, timeout=STORE_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
                await _store_all(job, answers)
                for worker in ended:
                    worker.result()  # raises what the worker did
                if job.status != Status.IN_PROGRESS:
                    break
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    await _store_all(job, answers)
    if not running:
        now = timezone.now()
        await sync_to_async(job.write)(Status.IN_PROGRESS, status=Status.FINALIZING, finalizing_at=now)


def _unanswered(job: BatchJob) -> Iterator[tuple[int, RequestLine]]:
    answered = set(job.lines.values_list("number", flat=True))
    return ((number, decode_line(line)) for number, line in read_lines(job.input_file.path) if number not in answered)


async def _store_all(job: BatchJob, answers: list[Answer]) -> None:
    """Store the answers, leaving the list empty; without any, only renew the lease and look at the status."""
    taken = answers.copy()
    answers.clear()
    await sync_to_async(_store)(job, taken)


def _store(job: BatchJob, answers: Sequence[Answer]) -> None:
    failed = sum(answer.failed for answer in answers)
    with transaction.atomic():
        job.write(  # first, so that nothing is stored without the lease
            completed=F("completed") + len(answers) - failed,
            failed=F("failed") + failed,
            input_tokens=F("input_tokens") + sum(answer.usage.input_tokens for answer in answers),
            cached_tokens=F("cached_tokens") + sum(answer.usage.cached_tokens for answer in answers),
            output_tokens=F("output_tokens") + sum(answer.usage.output_tokens for answer in answers),
            reasoning_tokens=F("reasoning_tokens") + sum(answer.usage.reasoning_tokens for answer in answers),
        )
        BatchLine.objects.bulk_create(
            BatchLine(
                batch=job,
                number=answer.number,
                failed=answer.failed,
                answer=msgspec.json.encode(answer.line).decode(),
            )
            for answer in answers
        )


def _end(job: BatchJob, status: Status, unanswered: LineError | None, **when: object) -> None:
    """Write the job's files and close it, unless its status changed meanwhile."""
    before = Status(job.status)
    output = results.write_output(job) if job.in_progress_at else None
    errors = results.write_errors(job, unanswered) if job.in_progress_at else None
    with transaction.atomic():
        if not job.write(before, status=status, **when):
            return
        for file in filter(None, (output, errors)):
            file.save()
        job.write(output_file=output, error_file=errors)
        job.lines.filter(failed=False).delete()  # they are in the output file now
