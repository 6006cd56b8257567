"""Pages of a list, for the endpoints on rows of the database."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from django.db.models import Model, QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import json_schema
from inference.api.edge.schemas import Payload

Row = TypeVar("Row", bound=Model)
Q = TypeVar("Q", bound="PageQuery")

Key = Annotated[str, Meta(pattern=r"^[\w-]{1,64}$")]


class PageQuery(msgspec.Struct, kw_only=True):
    """The query parameters of every list. `after` is the last id of the page before."""

    after: Key | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


def read_query(request: Request, schema: type[Q]) -> Q:
    """The query parameters as `schema`; an empty one is not given. Raises InvalidRequest."""
    given = {name: value for name, value in request.query_params.dict().items() if value}
    return Payload(msgspec.json.encode(given)).read(schema)


def describe_query(schema: type[PageQuery]) -> Callable:
    """Describe the query parameters of one endpoint. Goes above `operation`."""
    fields = json_schema(schema)["properties"].items()
    return extend_schema(parameters=[OpenApiParameter(name, type=field) for name, field in fields])


def read_page(rows: QuerySet[Row], query: PageQuery) -> tuple[Sequence[Row], bool]:
    """One page of rows that have a `key`, and whether there are more. Raises InvalidRequest."""
    ascending = query.order == "asc"
    if query.after is not None:
        last = rows.filter(key=query.after).values_list("pk", flat=True).first()
        if last is None:
            raise InvalidRequest(f"after: there is no {query.after!r} in this list", param="after")
        rows = rows.filter(pk__gt=last) if ascending else rows.filter(pk__lt=last)
    page: list[Any] = list(rows.order_by("pk" if ascending else "-pk")[: query.limit + 1])
    return page[: query.limit], len(page) > query.limit


def ends(data: Sequence[Any]) -> dict[str, str | None]:
    """The ids that a list's reply names: of its first and its last entry."""
    return {"first_id": data[0].id if data else None, "last_id": data[-1].id if data else None}
