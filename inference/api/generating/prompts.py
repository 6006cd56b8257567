"""From chat messages to the text that an RWKV model continues.

The layout is the one the models were tuned on: `User: ...` and `Assistant: ...` turns with a blank
line between them, hence none inside a turn. The thinking tag behind the last `Assistant:` is left
open to make the model think, and closed to make it answer at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.api.edge.errors import InvalidRequest
from inference.api.generating.reasoning import Thinking
from inference.api.generating.tools import Tool, call_text, describe_tools, response_text

SYSTEM_ROLES = ("system", "developer")
TURN_NAMES = {"user": "User", "assistant": "Assistant"}

THINKING = " <think"
NO_THINKING = " <think>\n</think>\n"
# Forced reasoning: "n" (111) and "</" (754) may not be the second or third new token, which would close
# the think tag before anything was thought.
CLOSES_THINKING = [(position, token) for position in (1, 2) for token in (111, 754)]


class EarlierFunction(msgspec.Struct):
    name: str
    arguments: str = "{}"


class EarlierCall(msgspec.Struct):
    function: EarlierFunction
    id: str | None = None


class Message(msgspec.Struct):
    """`content` is a text, or a list of texts and `{"type": "text", "text": ...}` parts.

    A message of the role `tool` is the result of one of the `tool_calls` before it.
    """

    role: str | None = None
    content: str | list[Any] | None = None
    tool_calls: list[EarlierCall] | None = None


@dataclass(frozen=True, slots=True)
class ThinkStyle:
    """How a `think_type` changes a prompt: what follows `Assistant:`, and what the last user text ends with."""

    tail: str
    thinking: Thinking = Thinking.BEGINNING  # what the tail leaves to the model
    user_suffix: str = ""
    forced: bool = True  # the model may not close the tag at once


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    text: str
    bans: list[tuple[int, int]]  # (position, token id), see Sampling.bans


PLAIN_STYLE = ThinkStyle("", Thinking.NONE, forced=False)  # the reply follows the role at once
_FREE = ThinkStyle(THINKING)
_FAST = ThinkStyle(" <think>\n</think", Thinking.ENDING, forced=False)
_BRIEF = ThinkStyle(THINKING, user_suffix=" (think a bit)")
_LONG = ThinkStyle(THINKING, user_suffix=" (think a lot)")
_CHINESE = ThinkStyle(THINKING + ">嗯", Thinking.BEGUN)
THINK_STYLES = {
    "fast": _FAST,
    "free": _FREE,
    "preferChinese": _CHINESE,
    "prefer_chinese": _CHINESE,
    "en": ThinkStyle(THINKING, user_suffix=" (think)"),
    "enShort": _BRIEF,
    "en_short": _BRIEF,
    "enLong": _LONG,
    "en_long": _LONG,
    "none": ThinkStyle("", Thinking.NONE, forced=False),
}


def think_style(think_type: str | None, think: bool | None, enable_think: bool | None) -> ThinkStyle:
    """The first of the three switches that says something decides; without any, the model answers at once.

    `think_type` and `think` are the C++ server's, and where a body has either of them, `enable_think` means there what
    it means to that server. A `think_type` that is not known says nothing.
    """
    if think_type in THINK_STYLES:
        return THINK_STYLES[think_type]
    if think is not None:
        return _FREE if think else _FAST
    if think_type is not None:
        return _FREE if enable_think else _FAST
    if enable_think:
        return ThinkStyle(THINKING, forced=False)
    return ThinkStyle(NO_THINKING, Thinking.NONE, forced=False)


def render_chat(
    messages: Iterable[Message],
    *,
    system: str | None = None,
    appended_user: str | None = None,
    style: ThinkStyle,
    force_reasoning: bool = False,
    tools: Sequence[Tool] = (),
) -> ChatPrompt:
    """One prompt from a conversation. Raises InvalidRequest when no system or user text is in it."""
    system_texts = [clean(system or "")]
    turns: list[tuple[str, str]] = []
    results: list[str] = []  # of tools: those in a row are one user turn
    for message in [*messages, Message("user", appended_user)]:
        role, text = message.role or "user", clean(message_text(message))
        if role == "tool":
            results.append(response_text(text))
            continue
        if results:
            turns.append((TURN_NAMES["user"], "\n".join(results)))
            results = []
        if role in SYSTEM_ROLES:
            system_texts.append(text)
        elif text and role in TURN_NAMES:
            turns.append((TURN_NAMES[role], text))
    if tools:
        system_texts.append(describe_tools(tools))
    system_text = "\n".join(text for text in system_texts if text)
    if not system_text and all(name != "User" for name, _ in turns):
        raise InvalidRequest("messages: expected some system or user text", param="messages")
    _append_to_last_user(turns, style.user_suffix)
    if system_text:
        turns.insert(0, ("System", system_text))
    blocks = [f"{name}: {text}" for name, text in turns]
    bans = CLOSES_THINKING if style.forced or force_reasoning else []
    return ChatPrompt("\n\n".join([*blocks, "Assistant:" + style.tail]), bans)


def clean(text: str) -> str:
    """The text with lines stripped and empty lines dropped: a blank line would end the turn."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(stripped for line in lines if (stripped := line.strip()))


def message_text(message: Message) -> str:
    """A message's text, and behind it the calls it made."""
    calls = [call_text(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return "\n".join([content_text(message.content), *calls])


def content_text(content: str | list[Any] | None) -> str:
    """A message's text: its text parts joined. Parts of other types have no meaning here and are left out."""
    if not isinstance(content, list):
        return content or ""
    return "".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        part = part.get("text")
    return part if isinstance(part, str) else ""


def _append_to_last_user(turns: list[tuple[str, str]], suffix: str) -> None:
    for place in range(len(turns) - 1, -1, -1):
        name, text = turns[place]
        if name == "User":
            turns[place] = (name, text + suffix)
            return
