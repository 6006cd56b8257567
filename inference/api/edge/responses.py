"""JSON responses."""

from typing import Any

import msgspec
from django.http import HttpResponse


def json_response(body: Any, status: int = 200) -> HttpResponse:
    """`body` as compact UTF-8 JSON, with its length, so that it is sent in one piece."""
    content = msgspec.json.encode(body)
    headers = {"Content-Length": str(len(content))}
    return HttpResponse(content, status=status, content_type="application/json", headers=headers)
