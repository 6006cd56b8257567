"""The OpenAPI side of the endpoints: msgspec structs described to drf-spectacular."""

from collections.abc import Callable
from typing import Any

import msgspec
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import extend_schema

from inference.api.edge.replies import ErrorReply

EVENT_STREAM = "text/event-stream"
ADMISSION_STATUSES = (401, 413, 429, 503)  # no valid key, too long a body, too many requests, no Redis or engine


def json_schema(schema: Any) -> dict[str, Any]:
    """A type's JSON schema with every reference written out in place (none of ours is recursive)."""
    (root,), definitions = msgspec.json.schema_components([schema], ref_template="{name}")
    return _written_out(root, definitions)


def _written_out(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_written_out(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _written_out(definitions[node["$ref"]], definitions)
    return {key: _written_out(value, definitions) for key, value in node.items()}


def operation(
    summary: str,
    *,
    tag: str,
    request: Any = None,
    replies: tuple[Any, ...] = (),
    statuses: tuple[int, ...] = (),
    streams: bool = False,
    text: str | None = None,
    operation_id: str | None = None,
    admitted: bool = True,
) -> Callable:
    """Describe one endpoint: the types of its body and replies, and the error statuses it may answer.

    Those that anyone who asks may get (ADMISSION_STATUSES) are added, unless the endpoint is not `admitted`: open to
    everyone. `text` says what a reply that is no JSON holds.
    """
    media: dict[Any, Any] = {}
    if replies:
        shapes = [json_schema(reply) for reply in replies]
        media[200, "application/json"] = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    if streams:
        media[200, EVENT_STREAM] = {"type": "string", "description": "Server-sent events, the last one [DONE]."}
    if text:
        media[200, "text/plain"] = {"type": "string", "description": text}
    refusals = sorted({*statuses, *(ADMISSION_STATUSES if admitted else ())})
    media |= {(status, "application/json"): json_schema(ErrorReply) for status in refusals}
    return extend_schema(
        operation_id=operation_id,
        summary=summary,
        tags=[tag],
        request={"application/json": json_schema(request)} if request is not None else None,
        responses=media,
    )


class KeyAuthenticationScheme(OpenApiAuthenticationExtension):
    target_class = "inference.api.edge.auth.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key, or the shared password."}
