"""One answer of the Responses API, as an object and as the events of a stream."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from inference.api.edge.sse import json_bytes
from inference.api.generating.message_parts import MessageParts
from inference.api.openai.chat_request import Chat
from inference.api.openai.response_objects import (
    InputDetails,
    OutputDetails,
    OutputItem,
    ResponseObject,
    ResponseUsage,
    new_item,
)
from inference.api.rows.choices import Delta
from inference.api.rows.generation import Generation, GenerationFailed

EVENT_NAMES = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class ResponseWriter:
    """Fills in `response` as the text comes. Its events are the same for a stream and for nobody."""

    def __init__(self, response: ResponseObject, chat: Chat) -> None:
        self.response = response
        self._chat = chat
        self._parsers = chat.parsers()
        self._sequence = 0
        self._finish_reason = ""

    async def events(self, generation: Generation) -> AsyncIterator[bytes]:
        """All events but the last one. Raises GenerationFailed."""
        yield self._event("response.created", response=self.response)
        yield self._event("response.in_progress", response=self.response)
        async for deltas in generation.deltas():
            for delta in deltas:
                parts = self._parts(delta)
                for event in self._add("reasoning", parts.reasoning):
                    yield event
                for event in self._add("message", parts.content):
                    yield event
                self._finish_reason = delta.finish_reason or ""
        if not any(item.type == "message" for item in self.response.output):
            for event in self._open("message"):
                yield event
        for event in self._close():
            yield event
        self._complete(generation)

    def last_event(self) -> bytes:
        return self._event(f"response.{self.response.status}", response=self.response)

    def failed_event(self, error: GenerationFailed) -> bytes:
        self.response.status = "failed"
        self.response.error = {"code": "server_error", "message": str(error)}
        return self.last_event()

    def _parts(self, delta: Delta) -> MessageParts:
        if not self._parsers:
            return MessageParts(content=delta.text)
        (parser,) = self._parsers
        parts = parser.push(delta.text, delta.tokens)
        if delta.finish_reason:
            parts += parser.finish()
        return parts

    # -- one item after the other ---------------------------------------------------------------

    @property
    def _item(self) -> OutputItem | None:
        return self.response.output[-1] if self.response.output else None

    def _add(self, kind: Literal["message", "reasoning"], text: str) -> Iterator[bytes]:
        if not text:
            return
        if self._item is None or self._item.type != kind:
            yield from self._close()
            yield from self._open(kind)
        assert self._item is not None
        self._item.content[0].text += text
        yield self._text_event("delta", delta=text)

    def _open(self, kind: Literal["message", "reasoning"]) -> Iterator[bytes]:
        yield from self._close()
        item = new_item(kind)
        self.response.output.append(item)
        empty = {"type": kind, "id": item.id, "status": item.status, "content": []}
        empty |= {"role": "assistant"} if kind == "message" else {"summary": []}
        yield self._event("response.output_item.added", output_index=self._index, item=empty)
        yield self._event("response.content_part.added", **self._place, part=item.content[0])

    def _close(self) -> Iterator[bytes]:
        item = self._item
        if item is None or item.status != "in_progress":
            return
        item.status = "incomplete" if self._finish_reason == "length" else "completed"
        yield self._text_event("done", text=item.text)
        yield self._event("response.content_part.done", **self._place, part=item.content[0])
        yield self._event("response.output_item.done", output_index=self._index, item=item)

    def _complete(self, generation: Generation) -> None:
        usage = self._chat.usage(generation, self._parsers)
        reasoning = sum(parser.reasoning_tokens for parser in self._parsers or ())
        self.response.usage = ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputDetails(reasoning),
            usage.total_tokens,
        )
        self.response.status = "completed"
        if self._finish_reason == "length":
            self.response.status = "incomplete"
            self.response.incomplete_details = {"reason": "max_output_tokens"}

    # -- events ---------------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item.id, "output_index": self._index, "content_index": 0}

    def _text_event(self, what: str, **text: str) -> bytes:
        assert self._item is not None
        logprobs = {"logprobs": []} if self._item.type == "message" else {}
        return self._event(f"{EVENT_NAMES[self._item.type]}.{what}", **self._place, **text, **logprobs)

    def _event(self, name: str, **fields: Any) -> bytes:
        event = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {name}\ndata: ".encode() + json_bytes(event) + b"\n\n"
