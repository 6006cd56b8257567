"""Cross-origin access for the browser pages that CORS_ORIGINS names (`*`: all)."""

import re

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

PREFLIGHT_SECONDS = 600
HEADERS = "Authorization, Content-Type, X-Request-ID"  # where a page does not say which it will send
HEADER_LIST = re.compile(r"[\w!#$%&'*+.^`|~, -]{1,1000}", re.ASCII)


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
        # Every header is allowed, and "*" would not mean Authorization: so the answer is what was asked for.
        wanted = request.META.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS", "")
        response["Access-Control-Allow-Headers"] = wanted if HEADER_LIST.fullmatch(wanted) else HEADERS
        patch_vary_headers(response, ["Access-Control-Request-Headers"])
        response["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
