"""POST /v1/chat/completions and /openai/v1/chat/completions.

One path, two protocols: a body with `messages` is an OpenAI chat; on /v1, a body with `contents`
alone is the native batch of raw prompts.
"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from django.http.response import HttpResponseBase
from msgspec import UNSET
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.replies import BatchCompletion, ChatChoice, ChatCompletion, ChatLogprobs, ChatMessage
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import Payload, StreamOptions
from inference.api.edge.sse import ChunkFrames, json_bytes
from inference.api.generating.logprobs import chat_logprobs
from inference.api.generating.message_parts import MessageParser
from inference.api.generating.model import find_model
from inference.api.generating.prompts import Message
from inference.api.generating.tools import NamedTool, ToolChoice, Tools, chosen_tools
from inference.api.native.batch import BatchBody, answer_batch
from inference.api.openai.chat_request import Chat, ChatFields, ToolUse
from inference.api.openai.chat_sessions import SessionFields, start_chat
from inference.api.rows.choices import Choice, Delta
from inference.api.rows.generation import Generation
from inference.bus.messages import ModelInfo


class ChatBody(SessionFields, kw_only=True):
    messages: list[Message] | None = None
    contents: list[str] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None


CHAT_STATUSES = (400, 404, 409, 500)  # 409: a session's turn


class OpenAIChatView(ApiView):
    @operation(
        "Answer a chat",
        tag="OpenAI",
        request=ChatBody,
        replies=(ChatCompletion,),
        statuses=CHAT_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        return await self.answer_chat(request.payload)

    async def answer_chat(self, payload: Payload) -> HttpResponseBase:
        body = payload.read(ChatBody)
        model = await find_model(body.model)
        chat, generation = await start_chat(self, body, _messages(body), model, _tool_use(body))
        answer = ChatAnswer(chat, body, model)
        if body.stream:
            return await self.stream(generation, answer.frames(generation))
        async with generation:
            return json_response(answer.reply(generation, await generation.collect()))


class ChatView(OpenAIChatView):
    def answers_natively(self, payload: Payload) -> bool:
        return payload.field("messages") in (None, []) and payload.field("contents") is not None

    @operation(
        "Answer a chat (`messages`), or continue a batch of raw prompts (`contents`)",
        tag="OpenAI",
        request=ChatBody,
        replies=(ChatCompletion, BatchCompletion),
        statuses=CHAT_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        if self.answers_natively(request.payload):
            return await answer_batch(self, request.payload.read(BatchBody))
        return await self.answer_chat(request.payload)


class ChatAnswer:
    """The way out of one request: its reply or its frames."""

    def __init__(self, chat: Chat, body: ChatFields, model: ModelInfo) -> None:
        self.chat = chat
        self.body = body
        self.parsers = chat.parsers()
        self.fixed = {
            "id": chat.request.request_id,
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": f"fp_{model.fingerprint[:16]}",
        }

    def reply(self, generation: Generation, rows: Sequence[Choice]) -> ChatCompletion:
        choices = [
            ChatChoice(row.index, self._message(row), self._logprobs(row), self._finish_reason(row), row.stop_reason)
            for row in rows
        ]
        return ChatCompletion(**self.fixed, choices=choices, usage=self.chat.usage(generation, self.parsers))

    async def frames(self, generation: Generation) -> AsyncIterator[bytes]:
        options = self.body.stream_options or StreamOptions()
        frames = ChunkFrames(object_name="chat.completion.chunk", with_usage=bool(options.include_usage), **self.fixed)
        role = b'{"role":"assistant","content":""}'
        usage = self.chat.usage(generation, self.parsers) if options.continuous_usage_stats else None
        for index in range(len(self.chat.request.rows)):
            yield frames.frame(_choice(index, role), usage)
        async for deltas in generation.deltas():
            usage = self.chat.usage(generation, self.parsers) if options.continuous_usage_stats else None
            for delta in deltas:
                for choice in self._parsed(delta) if self.parsers else self._plain(delta):
                    yield frames.frame(choice, usage)
                if delta.finish_reason:
                    yield frames.frame(self._last_choice(delta), usage)
        if options.include_usage:
            yield frames.frame(b"", self.chat.usage(generation, self.parsers))

    def _message(self, row: Choice) -> ChatMessage:
        if not self.parsers:
            return ChatMessage(content=row.text)
        parser = self.parsers[row.index]
        parts = parser.push(row.text, row.tokens)
        parts += parser.finish()
        return ChatMessage(
            content=parts.content or (None if parts.calls else ""),
            reasoning_content=parts.reasoning if self.chat.shows_reasoning else UNSET,
            tool_calls=parts.calls or UNSET,
        )

    def _plain(self, delta: Delta) -> list[bytes]:
        if not delta.text and not delta.tokens:
            return []
        content = b'{"content":' + json_bytes(delta.text) + b"}"
        return [_choice(delta.index, content, json_bytes(self._logprobs(delta)))]

    def _parsed(self, delta: Delta) -> list[bytes]:
        """One choice for each part that the delta has news of; the first one carries the logprobs."""
        assert self.parsers is not None
        parser: MessageParser = self.parsers[delta.index]
        parts = parser.push(delta.text, delta.tokens)
        if delta.finish_reason:
            parts += parser.finish()
        deltas = parser.deltas(parts)
        if self.body.logprobs and delta.tokens and not deltas:
            deltas = [{"content": ""}]
        logprobs = [json_bytes(self._logprobs(delta))] + [b"null"] * len(deltas)
        return [_choice(delta.index, json_bytes(one), entry) for one, entry in zip(deltas, logprobs, strict=False)]

    def _last_choice(self, delta: Delta) -> bytes:
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % (
            delta.index,
            json_bytes(self._finish_reason(delta)),
            json_bytes(delta.stop_reason),
        )

    def _finish_reason(self, part: Delta | Choice) -> Any:
        called = part.finish_reason == "stop" and self.parsers and self.parsers[part.index].calls
        return "tool_calls" if called else part.finish_reason

    def _logprobs(self, part: Delta | Choice) -> ChatLogprobs | None:
        return chat_logprobs(part.tokens, part.logprobs or []) if self.body.logprobs else None


def _choice(index: int, delta: bytes, logprobs: bytes = b"null") -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, delta, logprobs)


def _messages(body: ChatBody) -> list[Message]:
    """The conversation; the first of `contents` is the user's last turn. Raises InvalidRequest."""
    messages = [*(body.messages or []), *[Message("user", text) for text in (body.contents or [])[:1]]]
    if not messages:
        raise InvalidRequest("messages: expected at least one message", param="messages")
    return messages


def _tool_use(body: ChatBody) -> ToolUse:
    """Raises InvalidRequest."""
    if body.functions:
        raise InvalidRequest("functions: not supported, use tools", param="functions")
    tools = chosen_tools(body.tools, body.tool_choice)
    named = isinstance(body.tool_choice, NamedTool)
    several = body.parallel_tool_calls is not False and not named
    return ToolUse(tools, required=named or body.tool_choice == "required", several=several)
