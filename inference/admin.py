from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from unfold.admin import ModelAdmin

from inference.batches import admin as batches_admin  # noqa: F401  (registers its models)
from inference.models import ApiKey, Engine
from inference.pages.engines import render_snapshot
from inference.translation import admin as translation_admin  # noqa: F401


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
    """A page of what Redis says of the engines. Nothing can be changed here."""

    def get_urls(self):
        data = self.admin_site.admin_view(never_cache(self.data_view))
        return [path("data/", data, name="inference_engine_data"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        self.require_permission(request)
        context = {
            **self.admin_site.each_context(request),
            "title": "Engines",
            "opts": self.opts,
            "fragment": render_snapshot(),
        }
        return TemplateResponse(request, "admin/inference/engine/engines.html", context)

    def data_view(self, request: HttpRequest) -> JsonResponse:
        self.require_permission(request)
        return JsonResponse({"html": render_snapshot()})

    def require_permission(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Engine | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Engine | None = None) -> bool:
        return False
