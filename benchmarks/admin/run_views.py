"""The pages behind the list of runs: live part, requests, exports, comparison, sweep and trends."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST
from unfold.admin import ModelAdmin

from benchmarks import actions
from benchmarks.models import Run, Status
from benchmarks.pages import comparison, live, requests, run_page, sweep, trends
from benchmarks.storage import load_result

READS_TEXTS = "benchmarks.view_request_text"


class RunViews(ModelAdmin):
    """Every view asks for the permission to see runs; those that change something for more."""

    def get_urls(self) -> list[Any]:
        def page(route: str, view: Callable[..., HttpResponse], name: str) -> Any:
            return path(route, self.admin_site.admin_view(never_cache(view)), name=f"benchmarks_run_{name}")

        return [
            page("compare/", self.compare_view, "compare"),
            page("trends/", self.trends_view, "trends"),
            page("sweep/<str:series>/", self.sweep_view, "sweep"),
            page("<int:pk>/live/", self.live_view, "live"),
            page("<int:pk>/requests/", self.requests_view, "requests"),
            page("<int:pk>/cancel/", require_POST(self.cancel_view), "cancel"),
            page("<int:pk>/export/<slug:name>/", self.export_view, "export"),
            *super().get_urls(),
        ]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        run = self.get_object(request, object_id)
        if run is not None and request.method == "GET" and self.has_view_permission(request, run):
            shown = {"title": f"Run {run.key}", "may_cancel": self.has_change_permission(request, run)}
            kwargs["extra_context"] = {**run_page.context(run), **live.context(run), **shown}
        return super().change_view(request, object_id, *args, **kwargs)

    def live_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        run = self._run(request, pk)
        shown = {**live.context(run), "may_cancel": self.has_change_permission(request, run)}
        response = TemplateResponse(request, "admin/benchmarks/run/live.html", shown)
        if not run.is_open:
            response["HX-Refresh"] = "true"  # htmx loads the page anew, which now has all figures
        return response

    def requests_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        shown = {"requests": requests.page(self._run(request, pk), request.GET.dict())}
        return TemplateResponse(request, "admin/benchmarks/run/requests.html", shown)

    def cancel_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        run = self._run(request, pk)
        if not self.has_change_permission(request, run):
            raise PermissionDenied
        self.act(request, run, cancel)
        return redirect("admin:benchmarks_run_change", pk)

    def export_view(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        from benchmarks.loadgen import (
            exports,
        )  # its spreadsheets take a second to import, which only exports should pay

        if name not in exports.FORMATS:
            raise Http404(name)
        result = load_result(self._run(request, pk).pk)
        if not request.user.has_perm(READS_TEXTS):
            for record in result.records:
                record.text = None
        response = HttpResponse(exports.export(result, name), content_type=exports.FORMATS[name].content_type)
        response["Content-Disposition"] = f'attachment; filename="{exports.file_name(result, name)}"'
        return response

    def compare_view(self, request: HttpRequest) -> HttpResponse:
        keys = [key for key in request.GET.getlist("run") if key.isdecimal()][: comparison.MOST_RUNS]
        runs = sorted(self._runs(request).filter(pk__in=keys), key=lambda run: keys.index(str(run.pk)))
        chosen = [run for run in runs if run.summary]
        if len(chosen) < 2:
            self.message_user(request, "A comparison needs two runs that measured something.", messages.WARNING)
            return redirect("admin:benchmarks_run_changelist")
        baseline = next((run for run in chosen if str(run.pk) == request.GET.get("baseline")), chosen[0])
        return self._page(request, "compare", "Comparison", comparison.context(chosen, baseline))

    def sweep_view(self, request: HttpRequest, series: str) -> HttpResponse:
        runs = list(self._runs(request).filter(series=series).exclude(sweep_value=None).order_by("pk"))
        if not runs:
            raise Http404(series)
        return self._page(request, "sweep", f"Sweep of {runs[0].scenario or 'runs'}", sweep.context(runs))

    def trends_view(self, request: HttpRequest) -> HttpResponse:
        self._runs(request)
        return self._page(request, "trends", "Trends", trends.context(request.GET.dict()))

    def act(self, request: HttpRequest, run: Run, act: Callable[[Run], str]) -> None:
        """Do it, and tell what `act` says, or why it is not possible."""
        try:
            self.message_user(request, f"{run}: {act(run)}", messages.SUCCESS)
        except actions.NotPossible as error:
            self.message_user(request, f"{run}: {error}", messages.WARNING)

    def _page(self, request: HttpRequest, name: str, title: str, shown: dict[str, Any]) -> HttpResponse:
        site = self.admin_site.each_context(request)
        context = {**site, "opts": self.opts, "title": title, "media": self.media, **shown}
        return TemplateResponse(request, f"admin/benchmarks/run/{name}.html", context)

    def _runs(self, request: HttpRequest) -> QuerySet[Run]:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.get_queryset(request)

    def _run(self, request: HttpRequest, pk: int) -> Run:
        return get_object_or_404(self._runs(request), pk=pk)


def cancel(run: Run) -> str:
    actions.cancel_run(run)
    return "is cancelled" if run.status == Status.CANCELLED else "will stop in a moment"
