"""Batch jobs and their files: to look at, to cancel, to delete. They are made through the API alone."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from unfold.admin import ModelAdmin
from unfold.decorators import display

from inference.batches.actions import FileInUse, NotCancellable, cancel_batch, delete_file
from inference.batches.models import BatchJob, Status, StoredFile

SHOWN_LINES = 50
SHOWN_CHARACTERS = 1000
STATUS_LABELS = {
    Status.COMPLETED: "success",
    Status.IN_PROGRESS: "info",
    Status.FINALIZING: "info",
    Status.FAILED: "danger",
    Status.EXPIRED: "warning",
    Status.CANCELLED: "warning",
}


class ReadOnlyAdmin(ModelAdmin):
    """Rows that only change through actions; these need the permission to change the model."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_act_permission(self, request: HttpRequest) -> bool:
        return super().has_change_permission(request)


@admin.register(BatchJob)
class BatchJobAdmin(ReadOnlyAdmin):
    list_display = ["key", "owner", "endpoint", "status_label", "progress", "counts", "created_at", "expires_at"]
    list_filter = ["status", "endpoint", "owner"]
    search_fields = ["key", "owner"]
    actions = ["cancel"]
    exclude = ["errors"]
    readonly_fields = ["progress", "input_errors", "failed_lines"]

    @display(description="status", ordering="status", label=STATUS_LABELS)
    def status_label(self, job: BatchJob) -> str:
        return job.status

    @display(description="progress")
    def progress(self, job: BatchJob) -> str:
        answered = job.completed + job.failed
        share = f"{answered / job.total:.0%}" if job.total else ""
        return format_html('<progress value="{}" max="{}"></progress> {}', answered, max(job.total, 1), share)

    @display(description="answered / failed / lines")
    def counts(self, job: BatchJob) -> str:
        return f"{job.completed} / {job.failed} / {job.total}"

    @display(description="errors of the input")
    def input_errors(self, job: BatchJob) -> str:
        errors = [(error["line"] or "-", error["code"], error["message"]) for error in job.errors]
        return format_html_join("", "<p>line {}: {}: {}</p>", errors) or "-"

    @display(description=f"failed lines (the first {SHOWN_LINES})")
    def failed_lines(self, job: BatchJob) -> str:
        failed = job.lines.filter(failed=True).order_by("number").values_list("number", "answer")[:SHOWN_LINES]
        lines = [(number, answer[:SHOWN_CHARACTERS]) for number, answer in failed]
        return format_html_join("", "<p>line {}: <code>{}</code></p>", lines) or "-"

    @admin.action(description="Cancel", permissions=["act"])
    def cancel(self, request: HttpRequest, jobs: QuerySet[BatchJob]) -> None:
        for job in jobs:
            try:
                cancel_batch(job)
            except NotCancellable as error:
                self.message_user(request, f"{job}: {error}", messages.WARNING)
            else:
                self.message_user(request, f"{job} is {job.status}", messages.SUCCESS)


@admin.register(StoredFile)
class StoredFileAdmin(ReadOnlyAdmin):
    list_display = ["key", "filename", "purpose", "size", "owner", "created_at", "deleted_at"]
    list_filter = ["purpose", "owner"]
    search_fields = ["key", "filename", "owner"]
    actions = ["delete_content"]

    @display(description="size", ordering="bytes")
    def size(self, file: StoredFile) -> str:
        return filesizeformat(file.bytes)

    @admin.action(description="Delete the content", permissions=["act"])
    def delete_content(self, request: HttpRequest, files: QuerySet[StoredFile]) -> None:
        for file in files:
            try:
                delete_file(file)
            except FileInUse as error:
                self.message_user(request, f"{file}: {error}", messages.WARNING)
            else:
                self.message_user(request, f"{file} is deleted", messages.SUCCESS)
