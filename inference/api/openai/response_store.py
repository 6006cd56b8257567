"""Responses that a later request may ask for, or go on from. They are kept in Redis for a day."""

import msgspec
from django.core.cache import cache

from inference.api.edge.errors import InvalidRequest, NotFound
from inference.api.generating.prompts import Message
from inference.api.openai.response_objects import ResponseObject

KEPT_SECONDS = 24 * 3600


class StoredResponse(msgspec.Struct):
    """`messages` is the whole conversation, the answer included."""

    response: ResponseObject
    messages: list[Message]


async def save(owner: str, stored: StoredResponse) -> None:
    await cache.aset(_key(owner, stored.response.id), msgspec.msgpack.encode(stored), timeout=KEPT_SECONDS)


async def load(owner: str, response_id: str) -> StoredResponse:
    """A response of this caller. Raises NotFound."""
    data = await cache.aget(_key(owner, response_id))
    if data is None:
        raise NotFound(f"there is no response {response_id!r}", param="response_id")
    return msgspec.msgpack.decode(data, type=StoredResponse)


async def delete(owner: str, response_id: str) -> None:
    """Raises NotFound."""
    if not await cache.adelete(_key(owner, response_id)):
        raise NotFound(f"there is no response {response_id!r}", param="response_id")


async def earlier_messages(owner: str, previous_id: str | None) -> list[Message]:
    """The conversation up to a response. Raises InvalidRequest if it is not known, or no longer."""
    if previous_id is None:
        return []
    try:
        return (await load(owner, previous_id)).messages
    except NotFound as error:
        raise InvalidRequest(
            f"previous_response_id: {error.message}", param="previous_response_id", code="previous_response_not_found"
        ) from error


def _key(owner: str, response_id: str) -> str:
    return f"response:{owner}:{response_id}"
