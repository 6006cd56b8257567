"""The output and error files of a job that ends."""

from collections.abc import Iterator

import msgspec

from inference.batches.lines import decode_line, read_lines
from inference.batches.models import BatchJob, Purpose, StoredFile
from inference.batches.sender import AnswerLine, LineError, new_line_id
from inference.batches.storage import NewFile

PAGE_ROWS = 500  # answers in memory at one time


def write_output(job: BatchJob) -> StoredFile | None:
    """The answers of success as a file whose row is not saved yet; None when there are none."""
    return _write(job, "output", _answers(job, failed=False))


def write_errors(job: BatchJob, unanswered: LineError | None) -> StoredFile | None:
    """The failed lines and, with `unanswered`, what is said of each line that was not answered at all."""
    return _write(job, "errors", _failures(job, unanswered))


def _write(job: BatchJob, kind: str, lines: Iterator[bytes]) -> StoredFile | None:
    key = f"file-{job.key.removeprefix('batch_')}-{kind}"  # the same one each time that this is tried
    with NewFile(key, attempt=job.lease) as file:
        for line in lines:
            file.write(line)
            file.write(b"\n")
        if not file.size:
            return None
        file.keep()
    name = f"{job.key}_{kind}.jsonl"
    return StoredFile(key=key, owner=job.owner, purpose=Purpose.BATCH_OUTPUT, filename=name, bytes=file.size)


def _answers(job: BatchJob, *, failed: bool) -> Iterator[bytes]:
    last = 0
    while rows := job.lines.filter(failed=failed, number__gt=last).order_by("number")[:PAGE_ROWS]:
        job.write()  # renews the lease
        for row in rows:
            yield row.answer.encode()
            last = row.number


def _failures(job: BatchJob, unanswered: LineError | None) -> Iterator[bytes]:
    yield from _answers(job, failed=True)
    if unanswered is None:
        return
    answered = set(job.lines.values_list("number", flat=True))
    for number, line in read_lines(job.input_file.path):
        if number not in answered:
            answer = AnswerLine(new_line_id(), decode_line(line).custom_id, error=unanswered)
            yield msgspec.json.encode(answer)
