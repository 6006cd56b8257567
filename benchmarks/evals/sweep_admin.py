"""Eval sweeps and their schedules in the admin, to edit and to start."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import display

from benchmarks.evals.actions import NotPossible, queue_sweep
from benchmarks.evals.admin import LINK
from benchmarks.evals.models import EvalSchedule, EvalSweep


@admin.register(EvalSweep)
class EvalSweepAdmin(ModelAdmin):
    list_display = ["name", "task", "target", "data", "limit", "runs_of_it"]
    list_filter = ["task", "target"]
    list_select_related = ["target"]
    search_fields = ["name"]
    autocomplete_fields = ["target"]
    actions = ["run_now"]
    fields = ["name", "task", "target", "data", "sha256", "limit", "concurrency", "batch", "options", "entries"]
    save_as = True

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("benchmarks.add_evalrun")

    @display(description="runs")
    def runs_of_it(self, sweep: EvalSweep) -> str:
        url = f"{reverse('admin:benchmarks_evalrun_changelist')}?sweep__id__exact={sweep.pk}"
        return format_html('<a class="{}" href="{}">Runs</a>', LINK, url)

    @admin.action(description="Run now", permissions=["run"])
    def run_now(self, request: HttpRequest, sweeps: QuerySet[EvalSweep]) -> None:
        for sweep in sweeps.select_related("target"):
            try:
                runs = queue_sweep(sweep)
            except NotPossible as error:
                self.message_user(request, str(error), messages.WARNING)
            else:
                self.message_user(request, f"{sweep}: {len(runs)} queued", messages.SUCCESS)


@admin.register(EvalSchedule)
class EvalScheduleAdmin(ModelAdmin):
    list_display = ["name", "sweep", "rhythm", "enabled", "last_run_at"]
    list_filter = ["enabled"]
    list_select_related = ["sweep", "crontab", "interval"]
    autocomplete_fields = ["sweep"]
    fields = ["name", "sweep", "enabled", "interval", "crontab", "start_time", "one_off", "last_run_at"]
    readonly_fields = ["last_run_at"]

    @display(description="when")
    def rhythm(self, schedule: EvalSchedule) -> str:
        return str(schedule.crontab or schedule.interval or "–")
