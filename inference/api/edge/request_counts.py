"""How many requests this web process has answered, in Prometheus' text format."""

import os

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from prometheus_client import CollectorRegistry, Counter, generate_latest

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST")

_registry = CollectorRegistry()
_counter = Counter(
    "rwkv_http_requests",
    "Requests that a web process has answered, or begun to answer with a stream",
    ["process", "method", "route", "status"],
    registry=_registry,
)
_process = str(os.getpid())


def count_request(request: HttpRequest, response: HttpResponseBase) -> None:
    route = request.resolver_match.route.rstrip("/") if request.resolver_match else ""
    method = request.method if request.method in METHODS else "other"  # a client may send any word
    _counter.labels(_process, method, f"/{route}", str(response.status_code)).inc()


def request_counts() -> bytes:
    return generate_latest(_registry)
