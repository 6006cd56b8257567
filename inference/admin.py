import logging

import redis
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST
from unfold.admin import ModelAdmin

from inference.batches import admin as batches_admin  # noqa: F401  (registers its models)
from inference.models import ApiKey, Engine
from inference.pages.operations import give_order, read_snapshot
from inference.pages.operations_feed import poll, render_parts
from inference.translation import admin as translation_admin  # noqa: F401

log = logging.getLogger(__name__)


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """Issue, limit and disable keys. The secret is on the page that answers "add", and nowhere else."""

    list_display = ["name", "prefix", "enabled", "created", "last_used", "expires_at"]
    list_filter = ["enabled"]
    search_fields = ["name", "prefix", "notes"]
    fields = ["name", "enabled", "expires_at", "requests_per_minute", "max_concurrent", "notes"]
    readonly_fields = ["prefix", "created", "last_used"]

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        return self.fields if obj is None else [*self.fields, *self.readonly_fields]

    def save_model(self, request: HttpRequest, obj: ApiKey, form, change: bool) -> None:
        if not change:
            request.new_secret = obj.draw_secret()
        super().save_model(request, obj, form, change)

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        # Answered directly: a redirect with a message would leave the secret in a cookie or in the database.
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "opts": self.opts,
            "key": obj,
            "secret": request.new_secret,
        }
        response = TemplateResponse(request, "admin/inference/apikey/created.html", context)
        response.headers["Cache-Control"] = "no-store"
        return response


@admin.register(Engine)
class EngineAdmin(ModelAdmin):
    """The operations page: what engines and web processes do now, and orders to cancel requests."""

    def get_urls(self):
        data = self.admin_site.admin_view(never_cache(self.data_view))
        cancel = self.admin_site.admin_view(require_POST(self.cancel_view))
        return [
            path("data/", data, name="inference_engine_data"),
            path("cancel/", cancel, name="inference_engine_cancel"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        self.require_permission(request, "view")
        language = get_language() or ""
        context = {
            **self.admin_site.each_context(request),
            "title": _("Operations"),
            "opts": self.opts,
            "language": language,
            "parts": render_parts(language, read_snapshot(), with_charts=True),
            "may_cancel": request.user.has_perm("inference.change_engine"),
        }
        return TemplateResponse(request, "admin/inference/engine/operations.html", context)

    def data_view(self, request: HttpRequest) -> JsonResponse:
        self.require_permission(request, "view")
        return JsonResponse(poll(get_language() or ""))

    def cancel_view(self, request: HttpRequest) -> HttpResponse:
        """End the request of that id, all where `all` is given: each answer ends with what it has."""
        self.require_permission(request, "change")
        request_id = request.POST.get("request", "")
        if not request_id and "all" not in request.POST:
            return self._cancelled(request, _("request: name the request to cancel."), messages.ERROR)
        try:
            count = len(give_order("stop", request_id))
        except redis.RedisError as error:
            return self._cancelled(request, _("Redis does not answer: %(error)s") % {"error": error}, messages.ERROR)
        log.info("%s has cancelled %s: %d found", request.user, request_id or "all requests", count)
        words = ngettext("%(count)d request was cancelled.", "%(count)d requests were cancelled.", count)
        return self._cancelled(request, words % {"count": count})

    def _cancelled(self, request: HttpRequest, words: str, level: int = messages.SUCCESS) -> HttpResponse:
        """A script gets the words, a form without scripts the page with them."""
        if request.accepts("text/html"):
            messages.add_message(request, level, words)
            return redirect(reverse("admin:inference_engine_changelist"))
        return JsonResponse({"message": words})

    def require_permission(self, request: HttpRequest, action: str) -> None:
        if not request.user.has_perm(f"inference.{action}_engine"):
            raise PermissionDenied

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Engine | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Engine | None = None) -> bool:
        return False
