"""Sessions in the admin: to read, to fork, to move to and from files, to evict, to delete. Only clients make turns."""

import io
import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.cache import never_cache
from redis.exceptions import RedisError
from unfold.admin import ModelAdmin
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminTextInputWidget

from inference.bus.call import NoEngine
from sessions import actions
from sessions.models import KEY_LENGTH, Session
from sessions.samples import HEIGHT, SHOWN_HOURS, WIDTH, read_charts
from sessions.transcript import read_transcript
from sessions.transfer import MOST_IMPORT_BYTES, CannotTransfer, as_json, import_session, write_snapshot

READS_TRANSCRIPTS = "rwkv_sessions.view_transcript"
LEVEL_LABELS = {"L1": "success", "L2": "info", "database": "warning"}
MOST_FORKS = 100


class ImportForm(forms.Form):
    file = forms.FileField(widget=UnfoldAdminFileFieldWidget, help_text="A .json that was exported here or elsewhere.")
    owner = forms.CharField(
        max_length=100, widget=UnfoldAdminTextInputWidget, help_text="The caller whom the session will belong to."
    )
    key = forms.CharField(
        max_length=KEY_LENGTH,
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Its session_id; empty: the one it had.",
    )

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file.size > MOST_IMPORT_BYTES:
            raise forms.ValidationError(f"Expected at most {MOST_IMPORT_BYTES} bytes.")
        return file


@admin.register(Session)
class SessionAdmin(ModelAdmin):
    list_filter = ["model", "owner"]
    search_fields = ["key", "owner"]
    actions = ["fork", "warm", "evict"]
    actions_list = ["show_levels", "import_file"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        return super().get_queryset(request).filter(deleted_at=None).select_related("snapshot")

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        levels = actions.levels()

        @display(description="state", label=LEVEL_LABELS)
        def level(session: Session) -> str:
            return levels.get(session.digest, "database")

        return ["key", "owner", "model", level, "size", "token_count", "turn_count", "last_used"]

    def get_fields(self, request: HttpRequest, obj: Session | None = None) -> list[str]:
        fields = ["key", "owner", "model", "model_fingerprint", "token_count", "turn_count", "size", "parent"]
        fields += ["parent_turn", "start", "created", "last_used"]
        return [*fields, "text"] if request.user.has_perm(READS_TRANSCRIPTS) else fields

    @display(description="snapshot")
    def size(self, session: Session) -> str:
        snapshot = getattr(session, "snapshot", None)
        return f"{filesizeformat(snapshot.size)}, turn {snapshot.turn}" if snapshot else "–"

    @display(description="text")
    def text(self, session: Session) -> str:
        names = ("transcript", "export", "state")
        pages = [reverse(f"admin:rwkv_sessions_session_{name}", args=[session.pk]) for name in names]
        return format_html(
            '<a href="{}">Transcript</a> · <a href="{}">JSON</a> · <a href="{}">State (.pth)</a>', *pages
        )

    # -- the text, which needs a permission of its own ------------------------------------------

    def get_urls(self) -> list[Any]:
        views = {"transcript": self.transcript_view, "export": self.export_view, "state": self.state_view}
        return [
            path(
                f"<int:pk>/{name}/",
                self.admin_site.admin_view(never_cache(view)),
                name=f"rwkv_sessions_session_{name}",
            )
            for name, view in views.items()
        ] + super().get_urls()

    def transcript_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self._readable(request, pk)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Transcript of {session.key}",
            "opts": self.opts,
            "session": session,
            "turns": read_transcript(session),
        }
        return TemplateResponse(request, "admin/rwkv_sessions/session/transcript.html", context)

    def export_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self._readable(request, pk)
        return attachment(as_json(session), session, "json", "application/json")

    def state_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self._readable(request, pk)
        file = io.BytesIO()
        try:
            model = actions.loaded_model(session.model_fingerprint)
            if model is None:
                raise CannotTransfer(f"no engine has the model {session.model} loaded")
            write_snapshot(file, session, model)
        except CannotTransfer as error:
            self.message_user(request, f"No export: {error}", messages.WARNING)
            return redirect("admin:rwkv_sessions_session_change", pk)
        return attachment(file.getvalue(), session, "pth", "application/octet-stream")

    def _readable(self, request: HttpRequest, pk: int) -> Session:
        if not (self.has_view_permission(request) and request.user.has_perm(READS_TRANSCRIPTS)):
            raise PermissionDenied
        return get_object_or_404(self.get_queryset(request), pk=pk)

    # -- beside the list --------------------------------------------------------------------------

    @action(description="Levels and hit rates", url_path="levels", permissions=["view"])
    def show_levels(self, request: HttpRequest) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"The last {SHOWN_HOURS} hours",
            "opts": self.opts,
            "charts": read_charts(timezone.now()),
            "width": WIDTH,
            "height": HEIGHT,
        }
        return TemplateResponse(request, "admin/rwkv_sessions/session/levels.html", context)

    @action(description="Import", url_path="import", permissions=["act"])
    def import_file(self, request: HttpRequest) -> HttpResponse:
        form = ImportForm(request.POST or None, request.FILES or None)
        if form.is_valid():
            fields = form.cleaned_data
            try:
                session = import_session(fields["owner"], fields["key"], fields["file"].read())
            except CannotTransfer as error:
                form.add_error("file", str(error))
            else:
                self.message_user(request, f"{session} was imported", messages.SUCCESS)
                return redirect("admin:rwkv_sessions_session_change", session.pk)
        context = {
            **self.admin_site.each_context(request),
            "title": "Import a session",
            "opts": self.opts,
            "form": form,
        }
        return TemplateResponse(request, "admin/rwkv_sessions/session/import.html", context)

    # -- what changes something -----------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Session | None = None) -> bool:
        return False

    def has_act_permission(self, request: HttpRequest) -> bool:
        return super().has_change_permission(request)

    @admin.action(description="Fork", permissions=["act"])
    def fork(self, request: HttpRequest, sessions: QuerySet[Session]) -> None:
        for session in sessions:
            taken = set(Session.objects.present().filter(owner=session.owner).values_list("key", flat=True))
            keys = (f"{session.key} fork {number}" for number in range(1, MOST_FORKS))
            try:
                made = actions.fork(session, next(key for key in keys if key not in taken))
            except (actions.CannotFork, StopIteration) as error:
                self.message_user(request, f"{session}: {error or 'too many forks'}", messages.WARNING)
            else:
                self.message_user(request, f"{session} was forked as {made}", messages.SUCCESS)

    @admin.action(description="Load the state to memory", permissions=["act"])
    def warm(self, request: HttpRequest, sessions: QuerySet[Session]) -> None:
        try:
            count = actions.warm(list(sessions))
        except (NoEngine, RedisError) as error:
            self.message_user(request, f"Nothing is loaded: {error}", messages.WARNING)
            return
        self.message_user(
            request, f"An engine loads {count} states; those that are not saved wait for their next turn."
        )

    @admin.action(description="Evict the state from memory", permissions=["act"])
    def evict(self, request: HttpRequest, sessions: QuerySet[Session]) -> None:
        actions.evict([bytes.fromhex(session.digest) for session in sessions])
        self.message_user(request, "The engines drop these states; the next turn loads or rebuilds them.")

    def delete_model(self, request: HttpRequest, obj: Session) -> None:
        actions.delete([obj])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        actions.delete(list(queryset))

    def get_deleted_objects(self, objs: Sequence[Session], request: HttpRequest) -> tuple[list[str], dict, set, list]:
        """The sessions alone: a parent's turns stay as long as its branches need them."""
        return [str(session) for session in objs], {"sessions": len(objs)}, set(), []


def attachment(content: str | bytes, session: Session, suffix: str, content_type: str) -> HttpResponse:
    name = re.sub(r"[^\w.-]+", "_", session.key)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{suffix}"'}
    return HttpResponse(content, content_type=content_type, headers=headers)
