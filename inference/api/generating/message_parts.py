"""An assistant's message taken apart: what it thought, what it says, and which tools it calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.api.edge.replies import ToolCall
from inference.api.generating.reasoning import ReasoningSplitter, Thinking
from inference.api.generating.tools import ToolCallParser


@dataclass(slots=True)
class MessageParts:
    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def __iadd__(self, more: "MessageParts") -> "MessageParts":
        self.reasoning += more.reasoning
        self.content += more.content
        self.calls += more.calls
        return self


class MessageParser:
    """Takes one choice's text apart, piece by piece."""

    def __init__(self, thinking: Thinking, *, finds_calls: bool) -> None:
        self.calls = 0
        self._reasoning = ReasoningSplitter(thinking)
        self._tools = ToolCallParser() if finds_calls else None

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning.tokens

    def push(self, text: str, tokens: Sequence[int]) -> MessageParts:
        """The news in `text`, which came from `tokens`."""
        reasoning, content = self._reasoning.push(text, tokens)
        return self._parts(reasoning, *self._tools.push(content)) if self._tools else MessageParts(reasoning, content)

    def finish(self) -> MessageParts:
        """What was held back until it was known to what it belongs."""
        reasoning = self._reasoning.finish()
        return self._parts(reasoning, *self._tools.finish()) if self._tools else MessageParts(reasoning)

    def _parts(self, reasoning: str, content: str, calls: list[ToolCall]) -> MessageParts:
        self.calls += len(calls)
        return MessageParts(reasoning, content, calls)

    def deltas(self, parts: MessageParts) -> list[dict[str, Any]]:
        """`parts`, which came last, as the deltas of a stream."""
        found: list[dict[str, Any]] = []
        if parts.reasoning:
            found.append({"reasoning_content": parts.reasoning})
        if parts.content:
            found.append({"content": parts.content})
        first = self.calls - len(parts.calls)
        for index, call in enumerate(parts.calls, start=first):
            found.append(
                {"tool_calls": [{"index": index, "id": call.id, "type": call.type, "function": call.function}]}
            )
        return found
