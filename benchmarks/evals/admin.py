"""Eval runs in the admin, to read, cancel, resume and compare, and their documents."""

import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from unfold.admin import ModelAdmin
from unfold.decorators import display

from benchmarks.evals.actions import NotPossible, cancel_run, pin_baseline, resume_run, unpin_baseline
from benchmarks.evals.baselines import baseline_of, pinned_for
from benchmarks.evals.compare_page import comparison_view
from benchmarks.evals.models import EvalItem, EvalRun
from benchmarks.models.runs import OPEN, Status
from inference.batches.admin import ReadOnlyAdmin

STATUS_LABELS = {
    Status.QUEUED: "info",
    Status.RUNNING: "info",
    Status.DONE: "success",
    Status.FAILED: "danger",
    Status.CANCELLED: "warning",
    Status.LOST: "danger",
}
SHOWN_CHARACTERS = 120
LINK = "text-primary-600 dark:text-primary-500 underline"


@admin.register(EvalRun)
class EvalRunAdmin(ReadOnlyAdmin):
    list_display = ["task", "label", "model", "engine", "status_label", "progress", "score", "perplexity", "created"]
    list_display_links = ["task", "label"]
    list_filter = ["task", "status", "sweep", "model", "backend", "dtype"]
    search_fields = ["key", "label", "model", "fingerprint"]
    list_select_related = ["sweep"]
    actions = ["compare", "make_baseline", "drop_baseline", "cancel", "resume"]
    fieldsets = [
        (None, {"fields": ["key", "task", "label", "sweep", "status_label", "progress", "error", "note"]}),
        ("Score", {"fields": ["score", "perplexity", "bits", "by_group", "gate_outcomes", "links"]}),
        ("Speed", {"fields": ["documents_a_second", "prompt_tokens_per_second", "output_tokens_per_second"]}),
        ("Server", {"fields": ["base_url", "model", "fingerprint", "backend", "device", "dtype"]}),
        ("Settings", {"fields": ["prefix_policy", "configuration", "created", "started", "finished", "host"]}),
    ]
    readonly_fields = [
        "status_label",
        "progress",
        "score",
        "perplexity",
        "by_group",
        "bits",
        "gate_outcomes",
        "links",
        "note",
        "documents_a_second",
        "prompt_tokens_per_second",
        "output_tokens_per_second",
        "prefix_policy",
    ]

    def has_delete_permission(self, request: HttpRequest, obj: EvalRun | None = None) -> bool:
        """Of what is over; the runs of an open sweep would otherwise write into nothing."""
        return ModelAdmin.has_delete_permission(self, request, obj) and (obj is None or obj.status not in OPEN)

    def get_deleted_objects(self, objs: Sequence[EvalRun] | QuerySet[EvalRun], request: HttpRequest) -> Any:
        """Documents go with their run, though nobody may delete a single one."""
        shown, counts, needed, protected = super().get_deleted_objects(objs, request)
        return shown, counts, needed - {EvalItem._meta.verbose_name}, protected

    def delete_model(self, request: HttpRequest, obj: EvalRun) -> None:
        folder = obj.folder
        super().delete_model(request, obj)
        _remove_once_committed([folder])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[EvalRun]) -> None:
        folders = [run.folder for run in queryset]
        super().delete_queryset(request, queryset)
        _remove_once_committed(folders)

    def get_urls(self) -> list[Any]:
        compare = self.admin_site.admin_view(self.compare_view)
        return [path("compare/", compare, name="benchmarks_evalrun_compare"), *super().get_urls()]

    def compare_view(self, request: HttpRequest) -> HttpResponse:
        return comparison_view(self, request)

    # -- columns and fields -----------------------------------------------------------------------

    @display(description="status", ordering="status", label=STATUS_LABELS)
    def status_label(self, run: EvalRun) -> str:
        return run.status

    @display(description="answered")
    def progress(self, run: EvalRun) -> str:
        if not run.documents or run.status == Status.DONE:
            return str(run.n)
        return format_html('<progress value="{}" max="{}"></progress> {}', run.n, run.documents, run.n)

    @display(description="engine")
    def engine(self, run: EvalRun) -> str:
        return run.engine_words

    @display(description="accuracy (95% interval)", ordering="acc")
    def score(self, run: EvalRun) -> str:
        if run.acc is None:
            return "–"
        low, high = run.summary["acc_ci95"]
        return f"{run.acc:.2%} ({low:.2%} – {high:.2%})"

    @display(description="perplexity (95% interval)", ordering="ppl")
    def perplexity(self, run: EvalRun) -> str:
        interval = run.summary.get("ppl_ci95")
        if run.ppl is None or not interval:
            return "–"
        return f"{run.ppl:.4g} ({interval[0]:.4g} – {interval[1]:.4g})"

    @display(description="bits per byte (95% interval)", ordering="bits_per_byte")
    def bits(self, run: EvalRun) -> str:
        if run.bits_per_byte is None:
            return "–"
        interval = run.summary.get("bits_per_byte_ci95")
        words = f" ({interval[0]:.4f} – {interval[1]:.4f})" if interval else ""
        return f"{run.bits_per_byte:.4f}{words}"

    @display(description="by group")
    def by_group(self, run: EvalRun) -> str:
        groups = [
            (name or "–", f"{group['acc']:.1%}", group["n"]) for name, group in run.summary.get("groups", {}).items()
        ]
        return format_html_join("", "<p>{}: {} of {}</p>", groups) or "–"

    @display(description="rules")
    def gate_outcomes(self, run: EvalRun) -> str:
        rows = [(gate["rule"], gate["outcome"], gate["words"]) for gate in run.gates]
        return format_html_join("", "<p>{}: <strong>{}</strong>, {}</p>", rows) or "–"

    @display(description="documents")
    def links(self, run: EvalRun) -> str:
        items = f"{reverse('admin:benchmarks_evalitem_changelist')}?run__id__exact={run.pk}"
        html = format_html('<a class="{}" href="{}">Every document</a>', LINK, items)
        if run.baselines.exists():
            html = format_html("{} · The baseline of its sweep and label", html)
        if baseline := baseline_of(run):
            flips = f"{reverse('admin:benchmarks_evalrun_compare')}?runs={baseline.pk},{run.pk}"
            name = f"{baseline}, {baseline.created:%Y-%m-%d %H:%M}"
            html = format_html('{} · <a class="{}" href="{}">Flips against {}</a>', html, LINK, flips, name)
        return html

    @display(description="data")
    def note(self, run: EvalRun) -> str:
        return run.summary.get("note") or "–"

    @display(description="documents/s")
    def documents_a_second(self, run: EvalRun) -> str:
        return "–" if run.documents_per_second is None else f"{run.documents_per_second:,.1f}"

    @display(description="prompt tokens/s")
    def prompt_tokens_per_second(self, run: EvalRun) -> str:
        return _rate(run, "prompt_tokens_per_second")

    @display(description="output tokens/s")
    def output_tokens_per_second(self, run: EvalRun) -> str:
        return _rate(run, "output_tokens_per_second")

    @display(description="prompts")
    def prefix_policy(self, run: EvalRun) -> str:
        settings = run.summary.get("settings")
        if not settings:
            return "–"  # no server was asked yet
        if settings.get("prompts") == "text":
            return "text, prefix as the server has it"
        prefix = settings.get("prefix")
        return "ids without a prefix token" if prefix is None else f"ids behind the prefix token {prefix}"

    # -- actions ----------------------------------------------------------------------------------

    def has_baseline_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perms(["benchmarks.add_evalbaseline", "benchmarks.change_evalbaseline"])

    @admin.action(description="Compare: flips against their baseline, else the oldest one", permissions=["view"])
    def compare(self, request: HttpRequest, runs: QuerySet[EvalRun]) -> HttpResponse | None:
        chosen = list(runs.order_by("pk"))
        keys = list(dict.fromkeys([run.pk for run in [*_common_baseline(chosen), *chosen]]))
        if len(keys) < 2:
            words = "Choose two runs or more of one eval, or one that has a baseline."
            self.message_user(request, words, messages.WARNING)
            return None
        return redirect(f"{reverse('admin:benchmarks_evalrun_compare')}?runs={','.join(map(str, keys))}")

    @admin.action(description="Make it the baseline", permissions=["baseline"])
    def make_baseline(self, request: HttpRequest, runs: QuerySet[EvalRun]) -> None:
        by = request.user.get_username()
        self._do(request, runs.select_related("sweep"), lambda run: pin_baseline(run, by=by), "the baseline now")

    @admin.action(description="Make it no baseline any more", permissions=["baseline"])
    def drop_baseline(self, request: HttpRequest, runs: QuerySet[EvalRun]) -> None:
        self._do(request, runs, unpin_baseline, "no baseline any more")

    @admin.action(description="Cancel", permissions=["act"])
    def cancel(self, request: HttpRequest, runs: QuerySet[EvalRun]) -> None:
        self._do(request, runs, cancel_run)

    @admin.action(description="Go on", permissions=["act"])
    def resume(self, request: HttpRequest, runs: QuerySet[EvalRun]) -> None:
        self._do(request, runs, resume_run)

    def _do(self, request: HttpRequest, runs: QuerySet[EvalRun], action: Any, words: str = "") -> None:
        for run in runs:
            try:
                action(run)
            except NotPossible as error:
                self.message_user(request, f"{run}: {error}", messages.WARNING)
            else:
                self.message_user(request, f"{run} is {words or run.status}", messages.SUCCESS)


@admin.register(EvalItem)
class EvalItemAdmin(ReadOnlyAdmin):
    """The documents of a run; reached from its page."""

    list_display = ["doc", "verdict", "shown_logprob", "shown_predicted", "shown_expected", "tokens", "group"]
    list_filter = ["correct", "group", "run"]
    search_fields = ["predicted", "expected"]
    show_full_result_count = False
    list_per_page = 100

    def get_queryset(self, request: HttpRequest) -> QuerySet[EvalItem]:
        return super().get_queryset(request).defer("details")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return False  # no entry of its own in the menu

    @display(description="verdict", ordering="correct", label={"right": "success", "wrong": "danger"})
    def verdict(self, item: EvalItem) -> str:
        return {True: "right", False: "wrong", None: "–"}[item.correct]

    @display(description="log probability", ordering="logprob")
    def shown_logprob(self, item: EvalItem) -> str:
        return "–" if item.logprob is None else f"{item.logprob:.4f}"

    @display(description="predicted", ordering="predicted")
    def shown_predicted(self, item: EvalItem) -> str:
        return repr(item.predicted[:SHOWN_CHARACTERS]) if item.predicted else "–"

    @display(description="expected", ordering="expected")
    def shown_expected(self, item: EvalItem) -> str:
        return repr(item.expected[:SHOWN_CHARACTERS]) if item.expected else "–"


def _remove_once_committed(folders: Iterable[Path]) -> None:
    """Only then: a deletion that is taken back must not cost a run what it needs to go on."""
    for folder in folders:
        transaction.on_commit(partial(shutil.rmtree, folder, ignore_errors=True))


def _common_baseline(runs: list[EvalRun]) -> list[EvalRun]:
    """The run that the chosen ones are held against by default, where it is one and the same for all others."""
    found = {run.pk: pinned_for(run) if len(runs) > 1 else baseline_of(run) for run in runs}
    against = {baseline.pk: baseline for baseline in found.values() if baseline}
    if len(against) != 1:
        return []
    ((key, baseline),) = against.items()
    return [baseline] if all(found[run.pk] or run.pk == key for run in runs) else []


def _rate(run: EvalRun, name: str) -> str:
    value = run.summary.get(name)
    return "–" if value is None else f"{value:,.0f}"
