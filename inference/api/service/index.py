"""GET /: what this is, as JSON for programs and as a page for browsers."""

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework.request import Request

from inference.api.edge.auth import KeyAuthentication
from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.replies import Index
from inference.api.edge.responses import json_response
from inference.api.rows.engines import live_models
from inference.bus.call import NoEngine
from inference.bus.messages import ModelInfo


class IndexView(ApiView):
    """Open to everyone: it says nothing that the documentation does not."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    throttle_classes: list[Any] = []

    @operation("What this service is", tag="operations", replies=(Index,), admitted=False)
    async def get(self, request: Request) -> HttpResponse:
        try:
            models = await live_models()
        except NoEngine:  # Redis is away
            models = []
        if "text/html" in request.META.get("HTTP_ACCEPT", ""):
            return HttpResponse(await sync_to_async(render_index)(request, models))
        return json_response(Index(models=[model.id for model in models]))


def render_index(request: Request, models: list[ModelInfo]) -> str:
    """The page, with an example that works for whoever looks at it. Asks the database."""
    context = {
        "base_url": f"{request.scheme}://{request.get_host()}",
        "models": models,
        "needs_key": KeyAuthentication().authenticate(request) is None,
    }
    return render_to_string("inference/index.html", context, request._request)
