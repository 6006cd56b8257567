"""Jobs and their lines as pages show them. Only a window of the lines is ever read."""

from dataclasses import dataclass

from inference.translation.languages import display_name
from inference.translation.line_errors import in_page_language
from inference.translation.models import LineStatus, Status, TranslationJob, TranslationLine

LINES_PER_PAGE = 50
FAILED = "failed"  # the value of `show` that leaves out what is done or waits
_TONES = {
    Status.QUEUED: "",
    Status.RUNNING: "accent",
    Status.COMPLETED: "good",
    Status.CANCELLED: "",
    LineStatus.WAITING: "",
    LineStatus.DONE: "good",
    LineStatus.FAILED: "bad",
    LineStatus.SKIPPED: "",
}


@dataclass(frozen=True, slots=True)
class JobView:
    job: TranslationJob
    source: str
    target: str
    percent: int
    tone: str  # how its status is coloured


@dataclass(frozen=True, slots=True)
class LineView:
    line: TranslationLine
    tone: str
    error: str


@dataclass(frozen=True, slots=True)
class Window:
    """One page of a job's lines. `version` changes whenever what it shows may have changed."""

    lines: list[LineView]
    page: int
    pages: int
    show: str
    current: int  # the page of the first line that waits, or 0
    version: str

    @property
    def previous(self) -> int:
        return self.page - 1

    @property
    def next(self) -> int:
        return self.page + 1 if self.page < self.pages else 0


def describe_job(job: TranslationJob) -> JobView:
    return JobView(
        job,
        display_name(job.source_language),
        display_name(job.target_language),
        100 * (job.done + job.failed) // max(job.total, 1),
        _TONES[Status(job.status)],
    )


def version_of(job: TranslationJob) -> str:
    return f"{job.status}-{job.done}-{job.failed}-{job.queued_at.timestamp():.6f}"


def read_window(job: TranslationJob, page: int, show: str) -> Window:
    """Page numbers that do not exist are taken as the nearest one that does."""
    lines = job.lines.order_by("number")
    if show == FAILED:
        lines = lines.filter(status__in=(LineStatus.FAILED, LineStatus.SKIPPED))
        count = lines.count()
    else:
        show, count = "", job.total
    pages = max(1, -(-count // LINES_PER_PAGE))
    page = min(max(page, 1), pages)
    first = (page - 1) * LINES_PER_PAGE
    if show:
        window = lines[first : first + LINES_PER_PAGE]
    else:
        window = lines.filter(number__gt=first, number__lte=first + LINES_PER_PAGE)
    return Window(
        [LineView(line, _TONES[LineStatus(line.status)], in_page_language(line.error)) for line in window],
        page,
        pages,
        show,
        _current_page(job) if job.is_open and not show else 0,
        version_of(job),
    )


def _current_page(job: TranslationJob) -> int:
    number = job.lines.filter(status=LineStatus.WAITING).order_by("number").values_list("number", flat=True).first()
    return (number - 1) // LINES_PER_PAGE + 1 if number else 0
