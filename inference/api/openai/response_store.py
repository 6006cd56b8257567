"""Responses that a later request may ask for, or go on from. They are kept in the database for a day."""

from datetime import timedelta

import msgspec
from django.utils import timezone

from inference.api.edge.database import in_thread
from inference.api.edge.errors import InvalidRequest, NotFound
from inference.api.generating.prompts import Message
from inference.api.openai.response_objects import ResponseObject
from inference.stored_responses import StoredResponse

KEPT = timedelta(hours=24)


class Conversation(msgspec.Struct):
    """A response, and the whole conversation up to it, its own text included."""

    response: ResponseObject
    messages: list[Message]


async def save(owner: str, kept: Conversation) -> None:
    content = msgspec.json.encode(kept).decode()
    expires_at = timezone.now() + KEPT
    await in_thread(
        StoredResponse.objects.create, key=kept.response.id, owner=owner, content=content, expires_at=expires_at
    )


async def load(owner: str, response_id: str) -> Conversation:
    """A response of this caller. Raises NotFound."""
    content = await in_thread(_content, owner, response_id)
    if content is None:
        raise _missing(response_id)
    return msgspec.json.decode(content, type=Conversation)


async def delete(owner: str, response_id: str) -> None:
    """Raises NotFound."""
    deleted, _ = await in_thread(StoredResponse.objects.present().filter(owner=owner, key=response_id).delete)
    if not deleted:
        raise _missing(response_id)


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


def _content(owner: str, response_id: str) -> str | None:
    if "\0" in response_id:  # no id has one, and PostgreSQL does not take the question
        return None
    found = StoredResponse.objects.present().filter(owner=owner, key=response_id)
    return found.values_list("content", flat=True).first()


def _missing(response_id: str) -> NotFound:
    return NotFound(f"there is no response {response_id!r}", param="response_id")
