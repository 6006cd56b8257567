"""The list of runs, with its actions."""

from typing import Any

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from benchmarks import actions, charts
from benchmarks.admin.run_views import RunViews, cancel
from benchmarks.models import Run, Status
from benchmarks.models.gates import Outcome
from benchmarks.pages import run_page
from benchmarks.pages.words import load_of, number, share

STATUS_LABELS = {
    Status.DONE: "success",
    Status.RUNNING: "info",
    Status.FAILED: "danger",
    Status.LOST: "danger",
    Status.CANCELLED: "warning",
}
GATE_LABELS = {Outcome.PASS: "success", Outcome.WARN: "warning", Outcome.FAIL: "danger"}
# What a run's gates say together is the first of these that any of them says.
WORST_FIRST = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WARN, Outcome.PASS)
VERDICT_LABELS = {"ok": "success", "warn": "info", "client-limited": "warning"}


def pair(median: float | None, p99: float | None) -> str:
    return f"{number(median)} / {number(p99)}"


@admin.register(Run)
class RunAdmin(RunViews):
    list_filter = ["status", "kind", "origin", "scenario", "target", "client_verdict", "created"]
    search_fields = ["key", "scenario__name", "target__name", "notes"]
    list_per_page = 50
    actions = ["compare", "run_again", "cancel", "set_as_baseline"]
    fields = ["tags", "notes"]
    formfield_overrides = {
        models.JSONField: {"widget": UnfoldAdminTextareaWidget(attrs={"rows": 1})},
        models.TextField: {"widget": UnfoldAdminTextareaWidget(attrs={"rows": 3})},
    }
    change_form_template = "admin/benchmarks/run/page.html"

    class Media:
        css = {"all": ["benchmarks/charts.css", "benchmarks/console.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        runs = super().get_queryset(request).select_related("scenario", "target").prefetch_related("gate_results")
        in_list = request.resolver_match and request.resolver_match.url_name == "benchmarks_run_changelist"
        return runs.for_lists() if in_list else runs

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Columns of the list. The sparklines take one query for the whole page, made here."""
        recent = run_page.recent_medians()

        @display(description="TTFT of the last runs")
        def trend(run: Run) -> SafeString:
            values = recent.get(run.scenario_id, [])
            return mark_safe(charts.sparkline(values, title=f"TTFT of {run.scenario}")) if values else ""  # noqa: S308

        columns = ["key", "status_label", "gates", "scenario", "load", "ttft", trend, "tpot", "output_speed"]
        return [*columns, "success", "client", "created"]

    # -- columns of the list ------------------------------------------------------------------

    @display(description="status", ordering="status", label=STATUS_LABELS)
    def status_label(self, run: Run) -> str:
        return run.status

    @display(description="load")
    def load(self, run: Run) -> str:
        return load_of(run)

    @display(description="TTFT median / p99, ms", ordering="ttft_median")
    def ttft(self, run: Run) -> str:
        return pair(run.ttft_median, run.ttft_p99)

    @display(description="TPOT median / p99, ms", ordering="tpot_median")
    def tpot(self, run: Run) -> str:
        return pair(run.tpot_median, run.tpot_p99)

    @display(description="tokens/s", ordering="output_throughput")
    def output_speed(self, run: Run) -> str:
        return number(run.output_throughput)

    @display(description="success", ordering="success_rate")
    def success(self, run: Run) -> str:
        return share(run.success_rate)

    @display(description="client", ordering="client_verdict", label=VERDICT_LABELS)
    def client(self, run: Run) -> str:
        return run.client_verdict

    @display(description="gates", label=GATE_LABELS)
    def gates(self, run: Run) -> str:
        outcomes = {result.outcome for result in run.gate_results.all()}
        return next((outcome.value for outcome in WORST_FIRST if outcome in outcomes), "")

    # -- actions ------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # runs are queued from scenarios, and come from terminals

    def has_queue_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request)

    def has_baseline_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perms(["benchmarks.add_baseline", "benchmarks.change_baseline"])

    @admin.action(description="Compare (the oldest is the baseline)", permissions=["view"])
    def compare(self, request: HttpRequest, runs: QuerySet[Run]) -> HttpResponse:
        query = urlencode({"run": list(runs.order_by("pk").values_list("pk", flat=True))}, doseq=True)
        return redirect(f"{reverse('admin:benchmarks_run_compare')}?{query}")

    @admin.action(description="Run again, as it was", permissions=["queue"])
    def run_again(self, request: HttpRequest, runs: QuerySet[Run]) -> None:
        for run in runs:
            self.act(request, run, lambda run: f"queued again as {actions.run_again(run)}")

    @admin.action(description="Cancel", permissions=["change"])
    def cancel(self, request: HttpRequest, runs: QuerySet[Run]) -> None:
        for run in runs:
            self.act(request, run, cancel)

    @admin.action(description="Make it the baseline of its scenario", permissions=["baseline"])
    def set_as_baseline(self, request: HttpRequest, runs: QuerySet[Run]) -> None:
        by = request.user.get_username()
        for run in runs:
            self.act(request, run, lambda run: f"is the baseline now: {actions.pin_baseline(run, by=by).scenario}")
