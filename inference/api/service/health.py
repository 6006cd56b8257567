"""GET /health and /stats: whether the service can answer, and how busy it is."""

from typing import Any

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.replies import Health, Stats
from inference.api.edge.responses import json_response
from inference.api.rows.engines import live_engines
from inference.bus.call import NoEngine
from inference.bus.messages import EngineStatus


class HealthView(ApiView):
    """Open to everyone, for load balancers and the like."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []
    throttle_classes: list[Any] = []

    @operation("Whether an engine is ready", tag="operations", replies=(Health,), statuses=(503,), admitted=False)
    async def get(self, request: Request) -> HttpResponse:
        try:
            engines = await live_engines()
        except NoEngine:  # Redis is away
            engines = []
        health = summarise_health(engines)
        response = json_response(health, 200 if health.status == "ok" else 503)
        if health.status != "ok":
            response["Retry-After"] = str(NoEngine.retry_after)
        return response


class StatsView(ApiView):
    may_be_open = True

    @operation("Load and speed of every engine", tag="operations", replies=(Stats,))
    async def get(self, request: Request) -> HttpResponse:
        return json_response(summarise_stats(await live_engines()))


def summarise_health(engines: list[EngineStatus]) -> Health:
    ready = [engine for engine in engines if engine.state == "ready"]
    loading = any(engine.state == "loading" for engine in engines)
    return Health(
        status="ok" if ready else "loading" if loading else "unavailable",
        engines=len(ready),
        models=sorted({engine.model.id for engine in ready if engine.model}),
    )


def summarise_stats(engines: list[EngineStatus]) -> Stats:
    """Sums over the engines, and each engine's own heartbeat without its rows and states."""
    cached = sum(engine.cached_tokens for engine in engines)
    prefilled = sum(engine.prompt_tokens for engine in engines)
    return Stats(
        running=sum(engine.running for engine in engines),
        waiting=sum(engine.waiting for engine in engines),
        slots=sum(engine.slots for engine in engines),
        prompt_tokens=prefilled,
        generated_tokens=sum(engine.generated_tokens for engine in engines),
        prompt_tokens_per_second=sum(engine.prompt_tokens_per_second for engine in engines),
        generated_tokens_per_second=sum(engine.generated_tokens_per_second for engine in engines),
        cached_tokens=cached,
        prefix_hit_rate=cached / max(cached + prefilled, 1),
        state_hits=sum(engine.state_hits for engine in engines),
        state_loads=sum(engine.state_loads for engine in engines),
        engines=[msgspec.structs.replace(engine, rows=[], device_states=[], host_states=[]) for engine in engines],
    )
