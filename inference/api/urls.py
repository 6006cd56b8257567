"""The routes: one line for each. To add an endpoint, write a module beside this one and a line here."""

from typing import Any

from django.urls import URLPattern, path

from inference.api.base import ApiView
from inference.api.chat import ChatView, OpenAIChatView
from inference.api.completions import CompletionView
from inference.api.health import HealthView, StatsView
from inference.api.index import IndexView
from inference.api.model_list import ModelListView, ModelView
from inference.api.not_found import NotFoundView


def both(route: str, view: type[ApiView], **options: Any) -> list[URLPattern]:
    """The route with and without a slash at its end: the older servers' clients use either."""
    unlisted = {**options, "schema": None}
    return [path(route, view.as_view(**options)), path(f"{route}/", view.as_view(**unlisted))]


urlpatterns = [
    path("", IndexView.as_view()),
    *both("health", HealthView),
    *both("stats", StatsView),
    *both("v1/models", ModelListView),
    path("v1/models/<path:model>", ModelView.as_view()),
    *both("openai/v1/models", ModelListView, schema=None),
    *both("v1/completions", CompletionView),
    *both("v1/chat/completions", ChatView),
    *both("openai/v1/chat/completions", OpenAIChatView),
    path("<path:route>", NotFoundView.as_view(schema=None)),
]
