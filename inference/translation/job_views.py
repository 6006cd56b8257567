"""One job: its page, the window of its lines, and what can be done with it. Everyone sees their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header, urlencode
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from inference.translation import actions
from inference.translation.access import signed_in
from inference.translation.files import download_name, write_file
from inference.translation.models import TranslationJob
from inference.translation.presenting import describe_job, read_window, version_of

MOST_DIGITS = 8  # of the number of a line or page


@signed_in
@require_GET
@never_cache
def job_page(request: HttpRequest, key: str) -> HttpResponse:
    return render(request, "inference/translate_job.html", _context(request, _find(request, key)))


@signed_in
@require_GET
@never_cache
def job_lines(request: HttpRequest, key: str) -> HttpResponse:
    """The window alone. 204 when nothing has changed since the version that the page has."""
    job = _find(request, key)
    if request.GET.get("seen") == version_of(job):
        return HttpResponse(status=204)
    return _render_lines(request, job)


@signed_in
@require_POST
def cancel_job(request: HttpRequest, key: str) -> HttpResponse:
    with _found(request, key) as job:
        actions.cancel(job)
    return _after(request, job)


@signed_in
@require_POST
def retry(request: HttpRequest, key: str) -> HttpResponse:
    """One line, by its number in `line`; without it, all that have failed or were skipped."""
    number = request.POST.get("line", "")
    with _found(request, key) as job:
        if not number:
            actions.retry_rest(job)
        elif number.isdecimal() and len(number) < MOST_DIGITS:
            actions.retry_line(job, int(number))
    return _after(request, job)


@signed_in
@require_POST
def delete_job(request: HttpRequest, key: str) -> HttpResponse:
    job = _find(request, key)
    actions.delete(job)
    messages.success(request, _("“%(job)s” has been deleted.") % {"job": job.filename or _("Pasted text")})
    return redirect("translate")


@signed_in
@require_GET
@never_cache
def download(request: HttpRequest, key: str) -> HttpResponse:
    """The file as it is now: lines without a translation are as they came."""
    job = _find(request, key)
    return HttpResponse(
        write_file(job),
        content_type="application/octet-stream",  # never shown as a page: the text is anybody's
        headers={"Content-Disposition": content_disposition_header(True, download_name(job))},
    )


def _find(request: HttpRequest, key: str) -> TranslationJob:
    return get_object_or_404(TranslationJob, key=key, user=request.user)


@contextmanager
def _found(request: HttpRequest, key: str) -> Iterator[TranslationJob]:
    """As `_find`, also of a job that is deleted within the block."""
    try:
        yield _find(request, key)
    except TranslationJob.DoesNotExist as error:
        raise Http404 from error


def _after(request: HttpRequest, job: TranslationJob) -> HttpResponse:
    """The window that the page shows, or the page itself for a browser without scripts."""
    if "HX-Request" in request.headers:
        return _render_lines(request, job)
    page, show = _place(request)
    return redirect(f"{reverse('translation', args=[job.key])}?{urlencode({'page': page, 'show': show})}")


def _render_lines(request: HttpRequest, job: TranslationJob) -> HttpResponse:
    return render(request, "inference/translate_lines.html", _context(request, job))


def _context(request: HttpRequest, job: TranslationJob) -> dict[str, object]:
    return {"view": describe_job(job), "job": job, "window": read_window(job, *_place(request))}


def _place(request: HttpRequest) -> tuple[int, str]:
    """The page and the filter that the request names, if it names them well."""
    given = request.POST if request.method == "POST" else request.GET
    page = given.get("page", "")
    return int(page) if page.isdecimal() and len(page) < MOST_DIGITS else 1, given.get("show", "")
