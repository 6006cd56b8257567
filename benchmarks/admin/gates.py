"""Gate rules and baselines; what became of a rule is on the pages of the runs."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from benchmarks.models import Baseline, GateRule


@admin.register(GateRule)
class GateRuleAdmin(ModelAdmin):
    list_display = ["__str__", "scenario", "eval_task", "sweep", "enabled"]
    list_filter = ["enabled", "scenario"]
    list_select_related = ["scenario", "sweep"]
    search_fields = ["metric", "eval_task"]
    autocomplete_fields = ["scenario", "sweep"]
    fields = ["scenario", "eval_task", "sweep", "metric", "comparison", "limit", "relative", "enabled"]


@admin.register(Baseline)
class BaselineAdmin(ModelAdmin):
    list_display = ["scenario", "run", "set_at", "set_by"]
    list_select_related = ["scenario", "run"]
    autocomplete_fields = ["scenario", "run"]
    fields = ["scenario", "run"]

    def save_model(self, request: HttpRequest, obj: Baseline, form: Any, change: bool) -> None:
        obj.set_by = request.user.get_username()
        super().save_model(request, obj, form, change)
