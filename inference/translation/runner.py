"""Runs one job for a turn, under a lease.

A line is stored with its answer in the same transaction as the job's counts, so a runner can be cut off
anywhere, and the next one asks only for the lines that have no answer.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

import aiohttp
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from inference.batches.sender import CONCURRENCY, KeyRefused, open_session
from inference.translation.formats import FORMATS
from inference.translation.glossary import Glossary, parse_glossary
from inference.translation.line_errors import KEY_REFUSED, UNEXPECTED
from inference.translation.models import LineStatus, Status, TranslationJob, TranslationLine
from inference.translation.sender import Outcome, Translator

log = logging.getLogger(__name__)

STORE_SECONDS = 0.5  # how often answers are stored, and how soon a cancellation is seen
# A turn takes no new lines after this time. Then the next job has its turn, and other work of the worker comes in.
TURN_SECONDS = 5.0
TURN_LINES = 2000


def run(job: TranslationJob, stopping: threading.Event) -> None:
    """Advance the job for one turn. Raises LeaseLost."""
    try:
        async_to_sync(_translate_lines)(job, stopping)
    except KeyRefused as error:
        log.error("translation %s: %s", job.key, error)
        _fail_rest(job)
    if job.status == Status.RUNNING and not stopping.is_set():
        _end_turn(job)
    log.info("translation %s: %s, %d of %d lines", job.key, job.status, job.done + job.failed, job.total)


async def _translate_lines(job: TranslationJob, stopping: threading.Event) -> None:
    """Send the lines that wait, CONCURRENCY at one time, and store what comes."""
    lines = iter(await sync_to_async(_waiting_lines)(job))
    translator = Translator(
        source=job.source_language,
        target=job.target_language,
        format=FORMATS[job.format],
        glossary=Glossary(parse_glossary(job.glossary)),
    )
    outcomes: list[Outcome] = []
    turn_ends = time.monotonic() + TURN_SECONDS

    async def work() -> None:
        for number, text in lines:  # shared: each of the workers takes the next line
            outcomes.append(await _translate_line(translator, session, number, text))
            if time.monotonic() > turn_ends:
                return

    async with open_session() as session:
        workers = [asyncio.create_task(work()) for _ in range(CONCURRENCY)]
        running = set(workers)
        try:
            while running and not stopping.is_set():
                ended, running = await asyncio.wait(running, timeout=STORE_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
                await _store_all(job, outcomes)
                for worker in ended:
                    worker.result()  # raises what the worker did
                if job.status != Status.RUNNING:
                    break
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    await _store_all(job, outcomes)


async def _translate_line(translator: Translator, session: aiohttp.ClientSession, number: int, text: str) -> Outcome:
    """An outcome whatever happens: one line must not be in the way of the others. Raises KeyRefused."""
    try:
        return await translator.translate(session, number, text)
    except KeyRefused:
        raise
    except Exception:
        log.exception("line %d could not be translated", number)
        return Outcome(number, error=UNEXPECTED)


def _waiting_lines(job: TranslationJob) -> list[tuple[int, str]]:
    waiting = job.lines.filter(status=LineStatus.WAITING).order_by("number")
    return list(waiting.values_list("number", "source")[:TURN_LINES])


async def _store_all(job: TranslationJob, outcomes: list[Outcome]) -> None:
    """Store the outcomes, leaving the list empty; without any, only renew the lease and look at the status."""
    taken = outcomes.copy()
    outcomes.clear()
    await sync_to_async(_store)(job, taken)


def _store(job: TranslationJob, outcomes: Sequence[Outcome]) -> None:
    """Nothing is stored for a job that was cancelled meanwhile: its lines are skipped."""
    failed = sum(bool(outcome.error) for outcome in outcomes)
    with transaction.atomic():
        if not job.write(done=F("done") + len(outcomes) - failed, failed=F("failed") + failed):
            return
        pks = dict(job.lines.filter(number__in=[outcome.number for outcome in outcomes]).values_list("number", "pk"))
        now = timezone.now()
        TranslationLine.objects.bulk_update(
            [
                TranslationLine(
                    pk=pks[outcome.number],
                    status=LineStatus.FAILED if outcome.error else LineStatus.DONE,
                    translation=outcome.translation,
                    error=outcome.error,
                    answered_at=now,
                )
                for outcome in outcomes
            ],
            ["status", "translation", "error", "answered_at"],
        )


def _fail_rest(job: TranslationJob) -> None:
    """No line can be translated for now: whoever waits is told why, and may try again."""
    with transaction.atomic():
        if not job.write():
            return
        waiting = job.lines.filter(status=LineStatus.WAITING)
        count = waiting.update(status=LineStatus.FAILED, error=KEY_REFUSED, answered_at=timezone.now())
        job.write(failed=F("failed") + count)


def _end_turn(job: TranslationJob) -> None:
    """Close the job, or put it behind the others if lines are left: those of the next turn, or asked for again."""
    with transaction.atomic():
        if not job.write():
            return
        statuses = set(job.lines.values_list("status", flat=True).distinct().order_by())
        now = timezone.now()
        if LineStatus.WAITING in statuses:
            job.write(status=Status.QUEUED, queued_at=now)
        elif LineStatus.SKIPPED in statuses:
            job.write(status=Status.CANCELLED, ended_at=now)
        else:
            job.write(status=Status.COMPLETED, ended_at=now)
