"""Chats that are sessions: of each request only what is new is rendered, behind what the state holds."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.schemas import NO_NUL
from inference.api.generating.prompts import SYSTEM_ROLES, Message
from inference.api.generating.session_key import session_key
from inference.api.generating.turns import SEPARATOR, open_turn
from inference.api.openai.chat_request import NO_TOOLS, Chat, ChatFields, ToolUse, build_chat, new_chat_id
from inference.api.rows.generation import Generation, start
from inference.bus.messages import ModelInfo
from sessions.models import KEY_LENGTH


class SessionFields(ChatFields, kw_only=True):
    """`session_id` names a session; `turn_separator` is what its turns are put apart by, a blank line if not given."""

    session_id: Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH, pattern=NO_NUL)] | None = None
    turn_separator: Annotated[str, Meta(max_length=100)] | None = None
    use_prefix_cache: bool | None = None


async def start_chat(
    view: ApiView, body: SessionFields, messages: Sequence[Message], model: ModelInfo, tool_use: ToolUse = NO_TOOLS
) -> tuple[Chat, Generation]:
    """Start a chat, as the next turn of its session if it names one. Raises ApiError, NoEngine or QueueFull."""
    key = session_key(view.request, body.session_id)
    if not key:
        chat = await build_chat(body, [messages], model, new_chat_id(), tool_use)
        chat.request.offline = view.request.user.offline
        chat.request.prefix_cache = body.use_prefix_cache is not False
        return chat, await start(chat.request)
    if (body.n or 1) > 1:
        raise InvalidRequest("n: expected 1 in a session", param="n")
    turn = await open_turn(view.request.user.name, key, model)
    try:
        separator = ""
        if not turn.is_first:
            messages = new_messages(messages)
            separator = SEPARATOR if body.turn_separator is None else body.turn_separator
        chat = await build_chat(
            body, [messages], model, new_chat_id(), tool_use, continued=not turn.is_first, before=separator
        )
        chat.request.offline = view.request.user.offline
        return chat, await start(turn.use(chat.request), turn)
    except BaseException:
        await turn.release()
        raise


def new_messages(messages: Sequence[Message]) -> list[Message]:
    """Those that the session has not seen: behind the last reply, without the system's. Raises InvalidRequest.

    A client may send the whole conversation every time, or only what is new.
    """
    replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
    rest = messages[replies[-1] + 1 :] if replies else messages
    new = [message for message in rest if message.role not in SYSTEM_ROLES]
    if not new:
        raise InvalidRequest("messages: expected a message behind those of the session", param="messages")
    return new
