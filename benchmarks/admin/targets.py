"""Targets and data sets."""

from django.contrib import admin
from unfold.admin import ModelAdmin
from unfold.decorators import display

from benchmarks.models import Dataset, Target


@admin.register(Target)
class TargetAdmin(ModelAdmin):
    list_display = ["name", "base_url", "backend", "model", "api_key_variable"]
    list_filter = ["backend"]
    search_fields = ["name", "base_url", "notes"]
    fields = ["name", "base_url", "backend", "endpoint", "model", "api_key_variable", "headers", "notes"]


@admin.register(Dataset)
class DatasetAdmin(ModelAdmin):
    list_display = ["name", "kind", "path", "rows", "lengths"]
    list_filter = ["kind"]
    search_fields = ["name", "path"]
    fields = ["name", "kind", "parameters", "path", "rows", "lengths", "sha256"]
    readonly_fields = ["rows", "lengths", "sha256"]

    @display(description="characters of a row: least, mean, most")
    def lengths(self, dataset: Dataset) -> str:
        stats = dataset.length_stats
        return f"{stats['min']:,} / {stats['mean']:,} / {stats['max']:,}" if stats else "–"
