"""Sessions in the admin: to read, to fork, to export, to evict, to delete. Only clients make turns."""

import re
from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.views.decorators.cache import never_cache
from unfold.admin import ModelAdmin
from unfold.decorators import display

from sessions import actions
from sessions.models import Session
from sessions.transcript import as_json, read_transcript

READS_TRANSCRIPTS = "rwkv_sessions.view_transcript"
LEVEL_LABELS = {"L1": "success", "L2": "info", "database": "warning"}
MOST_FORKS = 100


@admin.register(Session)
class SessionAdmin(ModelAdmin):
    list_filter = ["model", "owner"]
    search_fields = ["key", "owner"]
    actions = ["fork", "evict"]

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
        fields += ["parent_turn", "created", "last_used"]
        return [*fields, "text"] if request.user.has_perm(READS_TRANSCRIPTS) else fields

    @display(description="snapshot")
    def size(self, session: Session) -> str:
        snapshot = getattr(session, "snapshot", None)
        return f"{filesizeformat(snapshot.size)}, turn {snapshot.turn}" if snapshot else "–"

    @display(description="text")
    def text(self, session: Session) -> str:
        pages = [reverse(f"admin:rwkv_sessions_session_{page}", args=[session.pk]) for page in ("transcript", "export")]
        return format_html('<a href="{}">Transcript</a> · <a href="{}">JSON</a>', *pages)

    # -- the text, which needs a permission of its own ------------------------------------------

    def get_urls(self) -> list[Any]:
        views = {"transcript": self.transcript_view, "export": self.export_view}
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
        name = re.sub(r"[^\w.-]+", "_", session.key)
        response = HttpResponse(as_json(session), content_type="application/json")
        response["Content-Disposition"] = f'attachment; filename="{name}.json"'
        return response

    def _readable(self, request: HttpRequest, pk: int) -> Session:
        if not (self.has_view_permission(request) and request.user.has_perm(READS_TRANSCRIPTS)):
            raise PermissionDenied
        return get_object_or_404(self.get_queryset(request), pk=pk)

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
