"""Scenarios, which start runs, and their schedules."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import path, reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST
from unfold.admin import ModelAdmin
from unfold.decorators import display

from benchmarks.actions import NotPossible, queue_scenario
from benchmarks.models import Origin, Run, Scenario, Schedule


@admin.register(Scenario)
class ScenarioAdmin(ModelAdmin):
    list_display = ["name", "kind", "target", "dataset", "load", "repeats", "run_count", "trend"]
    list_filter = ["kind", "target"]
    list_select_related = ["target", "dataset"]
    search_fields = ["name"]
    autocomplete_fields = ["target", "dataset"]
    actions = ["run_now"]
    change_form_template = "admin/benchmarks/scenario/page.html"
    save_as = True
    fieldsets = [
        (None, {"fields": ["name", "kind", "target", "dataset", "profile", "slos", "tags"]}),
        ("Repeats and sweep", {"fields": ["seed", "repeats", "max_seconds", "sweep_option", "sweep_values"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Scenario]:
        return super().get_queryset(request).annotate(runs_there=Count("runs"))

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("benchmarks.add_run")

    @display(description="load")
    def load(self, scenario: Scenario) -> str:
        if scenario.is_sweep:
            return f"{scenario.sweep_option}: {', '.join(map(str, scenario.sweep_values))}"
        if users := scenario.profile.get("users"):
            return f"{users} users"
        rate = scenario.profile.get("request_rate")
        return f"{rate} requests/s" if rate else "all at once"

    @display(description="runs", ordering="runs_there")
    def run_count(self, scenario: Scenario) -> str:
        url = f"{reverse('admin:benchmarks_run_changelist')}?scenario__id__exact={scenario.pk}"
        return format_html('<a href="{}">{}</a>', url, scenario.runs_there)

    @display(description="trend")
    def trend(self, scenario: Scenario) -> str:
        url = f"{reverse('admin:benchmarks_run_trends')}?scenario={scenario.pk}"
        return format_html('<a href="{}">Trend</a>', url)

    @admin.action(description="Run now", permissions=["run"])
    def run_now(self, request: HttpRequest, scenarios: QuerySet[Scenario]) -> None:
        for scenario in scenarios:
            self._queue(request, scenario)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(require_POST(self.run_view))
        return [path("<int:pk>/run/", view, name="benchmarks_scenario_run"), *super().get_urls()]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        kwargs["extra_context"] = {"may_run": self.has_run_permission(request)}
        return super().change_view(request, object_id, *args, **kwargs)

    def run_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The button of a scenario's page."""
        if not (self.has_view_permission(request) and self.has_run_permission(request)):
            raise PermissionDenied
        runs = self._queue(request, get_object_or_404(Scenario, pk=pk))
        if len(runs) == 1:
            return redirect("admin:benchmarks_run_change", runs[0].pk)
        return redirect(f"{reverse('admin:benchmarks_run_changelist')}?scenario__id__exact={pk}")

    def _queue(self, request: HttpRequest, scenario: Scenario) -> list[Run]:
        try:
            runs = queue_scenario(scenario, origin=Origin.ADMIN)
        except NotPossible as error:
            self.message_user(request, str(error), messages.WARNING)
            return []
        words = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
        self.message_user(request, f"{scenario}: {words} queued", messages.SUCCESS)
        return runs


@admin.register(Schedule)
class ScheduleAdmin(ModelAdmin):
    list_display = ["name", "scenario", "rhythm", "enabled", "last_run_at"]
    list_filter = ["enabled"]
    list_select_related = ["scenario", "crontab", "interval"]
    autocomplete_fields = ["scenario"]
    fields = ["name", "scenario", "enabled", "interval", "crontab", "start_time", "one_off", "last_run_at"]
    readonly_fields = ["last_run_at"]

    @display(description="when")
    def rhythm(self, schedule: Schedule) -> str:
        return str(schedule.crontab or schedule.interval or "–")
