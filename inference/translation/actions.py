"""What people do with translation jobs. Every change of a job's state that the runner does not make is here."""

import logging

from celery import current_app
from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Length
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.translation.files import Document
from inference.translation.models import (
    OPEN,
    OVER,
    LineStatus,
    Status,
    TranslationJob,
    TranslationLine,
    TranslationSource,
)

log = logging.getLogger(__name__)

LOOK = "inference.translation.tasks.queue_translations"
MESSAGE_SECONDS = 60.0  # a message that no worker took in this time is repeated by the schedule
MAX_OPEN_JOBS = 20  # of one user
MAX_STORED_CHARACTERS = 100_000_000  # in the files of all jobs of one user, until they are deleted or expire
ROWS_AT_ONCE = 1000


class TooManyJobs(Exception):
    """The user has MAX_OPEN_JOBS jobs that are not over."""


class TooMuchText(Exception):
    """The user's jobs hold MAX_STORED_CHARACTERS, those that are over too."""


def create_jobs(
    user: AbstractBaseUser,
    documents: list[tuple[str, Document]],
    *,
    source_language: str,
    target_language: str,
    glossary: str = "",
) -> list[TranslationJob]:
    """Queue a job for each (filename, document). Raises TooManyJobs, TooMuchText.

    After any error there is none of them: a form that is sent again would otherwise double some.
    """
    if TranslationJob.objects.open().filter(user=user).count() + len(documents) > MAX_OPEN_JOBS:
        raise TooManyJobs
    held = TranslationSource.objects.filter(job__user=user).aggregate(sum=Sum(Length("text")))["sum"] or 0
    if held + sum(len(document.text) for _, document in documents) > MAX_STORED_CHARACTERS:
        raise TooMuchText
    jobs = []
    with transaction.atomic():
        for filename, document in documents:
            job = TranslationJob.objects.create(
                user=user,
                filename=filename,
                format=document.format.name,
                encoding=document.encoding.name,
                marked=document.encoding.marked,
                column=document.options.column,
                header=document.options.header,
                source_language=source_language,
                target_language=target_language,
                glossary=glossary,
                total=len(document.lines),
            )
            TranslationSource.objects.create(job=job, text=document.text)
            lines = [
                TranslationLine(job=job, number=number, source=text)
                for number, text in enumerate(document.lines, start=1)
            ]
            TranslationLine.objects.bulk_create(lines, batch_size=ROWS_AT_ONCE)
            jobs.append(job)
    nudge()
    return jobs


def cancel(job: TranslationJob) -> bool:
    """End a job; its lines that have no answer are skipped. False when it was over already.

    Raises TranslationJob.DoesNotExist when it was deleted meanwhile, as those that retry do.
    """
    with transaction.atomic():
        changed = TranslationJob.objects.filter(pk=job.pk, status__in=OPEN).update(
            status=Status.CANCELLED, ended_at=timezone.now()
        )
        if changed:
            job.lines.filter(status=LineStatus.WAITING).update(status=LineStatus.SKIPPED)
    job.refresh_from_db()
    return bool(changed)


def retry_line(job: TranslationJob, number: int) -> bool:
    """Translate a line that is over once more. False when there is no such line, or it waits already."""
    return _retry(job, number=number, status__in=OVER)


def retry_rest(job: TranslationJob) -> bool:
    """Translate every line that has failed or was skipped. False when there is none."""
    return _retry(job, status__in=(LineStatus.FAILED, LineStatus.SKIPPED))


def _retry(job: TranslationJob, **which: object) -> bool:
    with transaction.atomic():
        # The job first, as the runner does: both would otherwise wait for each other.
        TranslationJob.objects.select_for_update().get(pk=job.pk)
        lines = job.lines.filter(**which)
        done = lines.filter(status=LineStatus.DONE).count()
        failed = lines.filter(status=LineStatus.FAILED).count()
        again = lines.update(status=LineStatus.WAITING, translation="", error="", answered_at=None)
        jobs = TranslationJob.objects.filter(pk=job.pk)
        jobs.update(done=F("done") - done, failed=F("failed") - failed)
        if again:
            jobs.exclude(status__in=OPEN).update(status=Status.QUEUED, queued_at=timezone.now(), ended_at=None)
    job.refresh_from_db()
    if again:
        nudge()
    return bool(again)


def delete(job: TranslationJob) -> None:
    """Delete a job with its lines. A runner that is at it notices that its lease is gone."""
    _delete(TranslationJob.objects.filter(pk=job.pk))


def expire(days: float) -> int:
    """Delete the jobs that were over before `days` ago; 0 days: none. Returns how many."""
    old = TranslationJob.objects.over_for(days)
    pks = list(old.values_list("pk", flat=True)) if days else []
    # One at a time: a job may have many lines, and writers of SQLite wait for each other. One that somebody
    # has meanwhile asked for again is not old any more.
    return sum(_delete(old.filter(pk=pk)) for pk in pks)


def _delete(jobs: QuerySet[TranslationJob]) -> int:
    """Returns how many."""
    with transaction.atomic():
        # The job first, as the runner does: Django deletes the lines before it, and both would wait for each other.
        found = list(jobs.select_for_update())
        for job in found:
            job.delete()
    return len(found)


def nudge(delay: float = 0.0) -> None:
    """Have the workers look for jobs after `delay` seconds, rather than at the next tick of the schedule."""
    try:
        current_app.send_task(LOOK, countdown=delay, expires=delay + MESSAGE_SECONDS)
    except OperationalError as error:
        log.warning("translation jobs wait for the schedule, because Redis is away: %s", error)
