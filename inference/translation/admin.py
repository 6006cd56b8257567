"""Translation jobs: to look at, to cancel, to delete. They are made on the page alone."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from unfold.decorators import display

from inference.batches.admin import ReadOnlyAdmin
from inference.translation.actions import cancel, delete
from inference.translation.models import LineStatus, Status, TranslationJob

SHOWN_LINES = 50
SHOWN_CHARACTERS = 500
STATUS_LABELS = {Status.COMPLETED: "success", Status.RUNNING: "info", Status.CANCELLED: "warning"}


@admin.register(TranslationJob)
class TranslationJobAdmin(ReadOnlyAdmin):
    list_display = ["key", "user", "filename", "format", "status_label", "progress", "counts", "created_at"]
    list_filter = ["status", "format", "source_language", "target_language"]
    list_select_related = ["user"]
    search_fields = ["key", "filename", "user__username"]
    actions = ["cancel"]
    readonly_fields = ["progress", "failed_lines"]

    def has_delete_permission(self, request: HttpRequest, obj: TranslationJob | None = None) -> bool:
        return request.user.has_perm("inference.delete_translationjob")

    def delete_model(self, request: HttpRequest, job: TranslationJob) -> None:
        delete(job)  # in the order in which no runner is in its way

    def delete_queryset(self, request: HttpRequest, jobs: QuerySet[TranslationJob]) -> None:
        for job in jobs:
            delete(job)

    @display(description="status", ordering="status", label=STATUS_LABELS)
    def status_label(self, job: TranslationJob) -> str:
        return job.status

    @display(description="progress")
    def progress(self, job: TranslationJob) -> str:
        return format_html('<progress value="{}" max="{}"></progress>', job.done + job.failed, max(job.total, 1))

    @display(description="done / failed / lines")
    def counts(self, job: TranslationJob) -> str:
        return f"{job.done} / {job.failed} / {job.total}"

    @display(description=f"failed lines (the first {SHOWN_LINES})")
    def failed_lines(self, job: TranslationJob) -> str:
        failed = job.lines.filter(status=LineStatus.FAILED).order_by("number")[:SHOWN_LINES]
        lines = [(line.number, line.source[:SHOWN_CHARACTERS], line.error) for line in failed]
        return format_html_join("", "<p>line {}: <code>{}</code>: {}</p>", lines) or "-"

    @admin.action(description="Cancel", permissions=["act"])
    def cancel(self, request: HttpRequest, jobs: QuerySet[TranslationJob]) -> None:
        for job in jobs:
            if cancel(job):
                self.message_user(request, f"{job} is {job.status}", messages.SUCCESS)
            else:
                self.message_user(request, f"{job}: it was {job.status} already", messages.WARNING)
