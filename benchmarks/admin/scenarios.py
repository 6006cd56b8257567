"""Scenarios, which start runs, and their schedules."""

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import action, display

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
    actions_detail = ["run_this_now"]
    save_as = True
    fieldsets = [
        (None, {"fields": ["name", "kind", "target", "dataset", "profile", "slos", "tags"]}),
        ("Repeats and sweep", {"fields": ["seed", "repeats", "max_seconds", "sweep_option", "sweep_values"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Scenario]:
        return super().get_queryset(request).annotate(runs_there=Count("runs"))

    def has_run_permission(self, request: HttpRequest, object_id: object = None) -> bool:
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

    @action(description="Run now", permissions=["run"], url_path="run-now", icon="play_arrow")
    def run_this_now(self, request: HttpRequest, object_id: int) -> HttpResponse:
        runs = self._queue(request, self.get_queryset(request).get(pk=object_id))
        if len(runs) == 1:
            return redirect("admin:benchmarks_run_change", runs[0].pk)
        return redirect(f"{reverse('admin:benchmarks_run_changelist')}?scenario__id__exact={object_id}")

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
