"""Cross-origin access for the browser pages that CORS_ORIGINS names (`*`: all)."""

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

PREFLIGHT_SECONDS = 600


def add_cors_headers(request: HttpRequest, response: HttpResponseBase) -> None:
    origins = settings.RWKV.cors_origins
    origin = request.META.get("HTTP_ORIGIN")
    if not origins:
        return
    if "*" in origins:
        response["Access-Control-Allow-Origin"] = "*"
    else:
        patch_vary_headers(response, ["Origin"])
        if origin not in origins:
            return
        response["Access-Control-Allow-Origin"] = origin
    response["Access-Control-Expose-Headers"] = "X-Request-ID, Retry-After"
    if request.method == "OPTIONS":
        response["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
        response["Access-Control-Allow-Headers"] = "Authorization, Content-Type, X-Request-ID"
        response["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
