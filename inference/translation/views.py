"""/translate/: the form that starts jobs, and the list of a user's jobs."""

from django.contrib import messages
from django.core.exceptions import RequestDataTooBig, TooManyFilesSent
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_GET, require_http_methods

from inference.translation.access import signed_in
from inference.translation.actions import (
    MAX_OPEN_JOBS,
    MAX_STORED_CHARACTERS,
    TooManyJobs,
    TooMuchText,
    create_jobs,
)
from inference.translation.formats import EXTENSIONS
from inference.translation.forms import TranslationForm
from inference.translation.models import TranslationJob
from inference.translation.presenting import describe_job
from inference.translation.uploads import MAX_BYTES, bound_upload

JOBS_PER_PAGE = 20


@csrf_exempt  # `_receive` checks it: the check reads the body, which has to be bounded before
@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def translate(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        try:
            bound_upload(request)
            return _receive(request)
        except RequestDataTooBig:
            form = TranslationForm(initial=_last_choices(request))
            too_large = _("That is too large: text and files may have %(megabytes)d MB together.")
            return _render(request, form, 413, too_large % {"megabytes": MAX_BYTES // 10**6})
        except TooManyFilesSent:
            form = TranslationForm(initial=_last_choices(request))
            return _render(request, form, 400, _("At most %(most)d files at one time.") % {"most": MAX_OPEN_JOBS})
    return _render(request, TranslationForm(initial=_last_choices(request)))


@signed_in
@require_GET
def job_list(request: HttpRequest) -> HttpResponse:
    """The list alone, to be kept up to date."""
    return render(request, "inference/translate_list.html", _list_context(request))


@csrf_protect
def _receive(request: HttpRequest) -> HttpResponse:
    form = TranslationForm(request.POST, request.FILES)
    if not form.is_valid():
        return _render(request, form, 400)
    fields = form.cleaned_data
    try:
        jobs = create_jobs(
            request.user,
            form.documents,
            source_language=fields["source_language"],
            target_language=fields["target_language"],
            glossary=fields["glossary"],
        )
    except TooManyJobs:
        error = _("You may have %(most)d jobs at one time that are not done. Wait for some, or cancel them.")
        return _render(request, form, 429, error % {"most": MAX_OPEN_JOBS})
    except TooMuchText:
        error = _("Your translations may hold %(most)d million characters together. Delete some that you have.")
        return _render(request, form, 429, error % {"most": MAX_STORED_CHARACTERS // 10**6})
    if len(jobs) == 1:
        return redirect("translation", key=jobs[0].key)
    started = ngettext("%(count)d job has been started.", "%(count)d jobs have been started.", len(jobs))
    messages.success(request, started % {"count": len(jobs)})
    return redirect("translate")


def _last_choices(request: HttpRequest) -> dict[str, str]:
    last = TranslationJob.objects.filter(user=request.user).first()
    return {
        "source_language": last.source_language if last else "en",
        "target_language": last.target_language if last else "zh",
        "glossary": last.glossary if last else "",
    }


def _render(request: HttpRequest, form: TranslationForm, status: int = 200, error: str = "") -> HttpResponse:
    context = {
        **_list_context(request),
        "form": form,
        "error": error,
        "extensions": EXTENSIONS,
        "megabytes": MAX_BYTES // 10**6,
        "max_bytes": MAX_BYTES,
        "max_files": MAX_OPEN_JOBS,
    }
    return render(request, "inference/translate.html", context, status=status)


def _list_context(request: HttpRequest) -> dict[str, object]:
    page = Paginator(TranslationJob.objects.filter(user=request.user), JOBS_PER_PAGE).get_page(request.GET.get("page"))
    return {
        "page": page,
        "jobs": [describe_job(job) for job in page],
        "any_open": any(job.is_open for job in page),
    }
