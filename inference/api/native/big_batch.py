"""POST /big_batch/completions: many raw prompts, drawn with Gumbel noise alone, and always streamed."""

from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.generating.model import find_model
from inference.api.generating.sampling import BIG_BATCH, build_gumbel
from inference.api.native.batch import NATIVE_STATUSES, BatchBody, BatchRoute, answer_batch
from inference.api.native.replies import Healthz

ROUTE = BatchRoute(endpoint="big_batch.completions", defaults=BIG_BATCH, sampling=build_gumbel)


class BigBatchBody(BatchBody, kw_only=True):
    """Penalties, top_k and top_p are taken and have no effect, as in the older server."""

    temperature: float | None = None  # 0 and less mean greedy


class HealthzView(ApiView):
    """What the big batch's own server answered to load balancers, and so open to everyone."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    throttle_classes: list[Any] = []

    @operation(
        "Whether a model is loaded, and which", tag="operations", replies=(Healthz,), statuses=(503,), admitted=False
    )
    async def get(self, request: Request) -> HttpResponse:
        return json_response(Healthz(model=(await find_model(None)).id))


class BigBatchView(ApiView):
    native_errors = True

    @operation(
        "Continue many raw prompts as one stream (even with `stream: false`)",
        tag="native",
        request=BigBatchBody,
        statuses=NATIVE_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(BigBatchBody)
        body.stream = True
        return await answer_batch(self, body, ROUTE)
