"""Figures in Prometheus' text format: of the engines, from their heartbeats, and of this web process's requests."""

import os
from collections.abc import Iterator, Sequence

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference.bus.messages import EngineStatus

GAUGES = {
    "running": "Rows that have a slot",
    "waiting": "Rows that wait for a slot",
    "slots": "Rows that can run at once",
    "prompt_tokens_per_second": "Prompt tokens per second, between the last heartbeats",
    "generated_tokens_per_second": "New tokens per second, between the last heartbeats",
    "step_ms": "Milliseconds per step, between the last heartbeats",
}
COUNTERS = {
    "steps": "Steps since the engine started",
    "prompt_tokens": "Prompt tokens since the engine started",
    "generated_tokens": "New tokens since the engine started",
}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST")
LABELS = ["engine", "model"]

_requests = CollectorRegistry()
_counter = Counter(
    "rwkv_http_requests",
    "Requests that a web process has answered, or begun to answer with a stream",
    ["process", "method", "route", "status"],
    registry=_requests,
)
_process = str(os.getpid())


def count_request(request: HttpRequest, response: HttpResponseBase) -> None:
    route = request.resolver_match.route.rstrip("/") if request.resolver_match else ""
    method = request.method if request.method in METHODS else "other"  # a client may send any word
    _counter.labels(_process, method, f"/{route}", str(response.status_code)).inc()


def request_metrics() -> bytes:
    return generate_latest(_requests)


def engine_metrics(engines: Sequence[EngineStatus]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engines))
    return generate_latest(registry)


class _EngineCollector(Collector):
    def __init__(self, engines: Sequence[EngineStatus]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        for names, family in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, help_text in names.items():
                metric = family(f"rwkv_engine_{name}", help_text, labels=LABELS)
                for engine in self._engines:
                    metric.add_metric([engine.engine, engine.model.id if engine.model else ""], getattr(engine, name))
                yield metric
