"""/version, /ping, /load and /metrics: what tools and dashboards probe on vLLM."""

from django.conf import settings
from django.http import HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.request_counts import request_counts
from inference.api.edge.responses import json_response
from inference.api.rows.engines import live_engines
from inference.api.service.health import HealthView, summarise_health
from inference.api.service.metrics import engine_metrics
from inference.api.service.replies import Load, Version
from inference.bus.call import NoEngine


class VersionView(ApiView):
    may_be_open = True

    @operation("The version of this software", tag="vLLM", replies=(Version,))
    async def get(self, request: Request) -> HttpResponse:
        return json_response(Version(settings.SPECTACULAR_SETTINGS["VERSION"]))


class PingView(HealthView):
    """/health for those who only read the status."""

    @operation("Whether an engine is ready", tag="vLLM", text="Nothing.", statuses=(503,), admitted=False)
    async def get(self, request: Request) -> HttpResponse:
        try:
            health = summarise_health(await live_engines())
        except NoEngine:  # Redis is away
            health = summarise_health([])
        return HttpResponse(status=200 if health.status == "ok" else 503, content_type="text/plain")

    @operation("Whether an engine is ready", tag="vLLM", text="Nothing.", statuses=(503,), admitted=False)
    async def post(self, request: Request) -> HttpResponse:
        return await self.get(request)


class LoadView(ApiView):
    may_be_open = True

    @operation("How many rows run or wait", tag="vLLM", replies=(Load,))
    async def get(self, request: Request) -> HttpResponse:
        return json_response(Load(sum(engine.running + engine.waiting for engine in await live_engines())))


class MetricsView(ApiView):
    may_be_open = True

    @operation("Figures for Prometheus", tag="vLLM", text="Prometheus' text format.")
    async def get(self, request: Request) -> HttpResponse:
        try:
            engines = await live_engines()
        except NoEngine:  # Redis is away: this process's own figures are still there
            engines = []
        return HttpResponse(engine_metrics(engines) + request_counts(), content_type=CONTENT_TYPE_LATEST)
