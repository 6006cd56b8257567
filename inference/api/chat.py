"""POST /v1/chat/completions and /openai/v1/chat/completions.

One path, two protocols: a body with `messages` is an OpenAI chat; on /v1, a body with `contents`
alone is the native batch of raw prompts.
"""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from django.http.response import HttpResponseBase
from msgspec import Meta
from rest_framework.request import Request

from inference.api.base import ApiView
from inference.api.errors import InvalidRequest
from inference.api.generation import Choice, Delta, Generation, GenerationRequest, Row, start
from inference.api.limits import check_rows, encode_prompts, new_tokens
from inference.api.logprobs import chat_logprobs
from inference.api.model_list import find_model
from inference.api.native import BatchBody, answer_batch
from inference.api.openapi import operation
from inference.api.prompts import Message, render_chat, think_style
from inference.api.replies import BatchCompletion, ChatChoice, ChatCompletion, ChatMessage
from inference.api.responses import json_response
from inference.api.sampling import CHAT, build_sampling, collect_stops
from inference.api.schemas import MAX_TOP_LOGPROBS, OpenAIFields, Payload, StreamOptions
from inference.api.sse import ChunkFrames, json_bytes
from inference.api.usage import count_usage
from inference.bus.messages import ModelInfo


class ChatBody(OpenAIFields, kw_only=True):
    messages: list[Message] | None = None
    contents: list[str] | None = None
    system: str | None = None
    enable_think: bool | None = None
    think: bool | None = None
    think_type: str | None = None
    force_reasoning: bool | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None


CHAT_STATUSES = (400, 401, 404, 413, 429, 503)


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
        _check(body)
        chat = Chat(body, await find_model(body.model), self.request_id)
        generation = await start(chat.request)
        if body.stream:
            return await self.stream(generation, chat.frames(generation))
        async with generation:
            return json_response(chat.reply(generation, await generation.collect()))


class ChatView(OpenAIChatView):
    def answers_natively(self, payload: Payload) -> bool:
        return payload.field("messages") is None and payload.field("contents") is not None

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


class Chat:
    """One request: its rows on the way in, and its reply or frames on the way out."""

    def __init__(self, body: ChatBody, model: ModelInfo, request_id: str) -> None:
        self.body = body
        self.fixed = {
            "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": f"fp_{model.fingerprint[:16]}",
        }
        self.n = body.n or 1
        check_rows(self.n, "n")
        prompt = render_chat(
            body.messages or [],
            system=body.system,
            appended_user=body.contents[0] if body.contents else None,
            style=think_style(body.think_type, body.think, body.enable_think),
            force_reasoning=bool(body.force_reasoning),
        )
        (ids,) = encode_prompts([prompt.text], "messages")
        stops = collect_stops(body, CHAT)
        self.request = GenerationRequest(
            rows=[Row(prompt=ids, sampling=build_sampling(body, CHAT, i, prompt.bans)) for i in range(self.n)],
            model=model.id,
            endpoint="chat.completions",
            request_id=request_id,
            max_tokens=new_tokens(body, CHAT),
            stop_ids=stops.ids,
            stop_strings=stops.texts,
            include_stop=bool(body.include_stop_str_in_output),
            logprobs=(body.top_logprobs or 0) if body.logprobs else -1,
            chunk_size=body.chunk_size,
        )

    def reply(self, generation: Generation, rows: Sequence[Choice]) -> ChatCompletion:
        choices = [
            ChatChoice(
                row.index, ChatMessage(content=row.text), self._logprobs(row), row.finish_reason, row.stop_reason
            )
            for row in rows
        ]
        return ChatCompletion(**self.fixed, choices=choices, usage=count_usage(generation, self.n))

    async def frames(self, generation: Generation) -> AsyncIterator[bytes]:
        options = self.body.stream_options or StreamOptions()
        frames = ChunkFrames(object_name="chat.completion.chunk", with_usage=bool(options.include_usage), **self.fixed)
        running = count_usage if options.continuous_usage_stats else _no_usage
        role = b'{"role":"assistant","content":""}'
        for index in range(self.n):
            yield frames.frame(_choice(index, role), running(generation, self.n))
        async for deltas in generation.deltas():
            for delta in deltas:
                if delta.text or delta.tokens:
                    content = b'{"content":' + json_bytes(delta.text) + b"}"
                    choice = _choice(delta.index, content, json_bytes(self._logprobs(delta)))
                    yield frames.frame(choice, running(generation, self.n))
                if delta.finish_reason:
                    yield frames.frame(_last_choice(delta), running(generation, self.n))
        if options.include_usage:
            yield frames.frame(b"", count_usage(generation, self.n))

    def _logprobs(self, part: Delta | Choice):
        return chat_logprobs(part.tokens, part.logprobs or []) if self.body.logprobs else None


def _choice(index: int, delta: bytes, logprobs: bytes = b"null") -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, delta, logprobs)


def _last_choice(delta: Delta) -> bytes:
    return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % (
        delta.index,
        json_bytes(delta.finish_reason),
        json_bytes(delta.stop_reason),
    )


def _no_usage(generation: Generation, rows_per_prompt: int) -> None:
    return None


def _check(body: ChatBody) -> None:
    """Normalise the two names of the token limit, and refuse what cannot be served."""
    if body.max_completion_tokens is not None:
        body.max_tokens = body.max_completion_tokens
    if not body.messages and not body.contents:
        raise InvalidRequest("messages: expected at least one message", param="messages")
    for name in ("tools", "functions"):
        if getattr(body, name):
            raise InvalidRequest(f"{name}: calling tools is not supported", param=name)
    if body.response_format and body.response_format.get("type") != "text":
        raise InvalidRequest('response_format: expected {"type": "text"}', param="response_format")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs", param="top_logprobs")
    if body.stream_options and not body.stream:
        raise InvalidRequest("stream_options: needs stream", param="stream_options")
