"""POST /v1/responses, and GET and DELETE /v1/responses/{id}: OpenAI's Responses API, for text."""

from collections.abc import AsyncIterator

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.generating.model import find_model
from inference.api.generating.prompts import Message
from inference.api.openai import response_store
from inference.api.openai.chat import CHAT_STATUSES
from inference.api.openai.chat_request import build_chat
from inference.api.openai.response_objects import (
    DeletedResponse,
    ResponseBody,
    ResponseObject,
    new_response,
    read_input,
)
from inference.api.openai.response_store import Conversation, earlier_messages
from inference.api.openai.response_writer import ResponseWriter
from inference.api.rows.generation import Generation, GenerationFailed, start


class ResponsesView(ApiView):
    @operation(
        "Answer a conversation",
        tag="OpenAI",
        request=ResponseBody,
        replies=(ResponseObject,),
        statuses=CHAT_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(ResponseBody)
        _check(body)
        owner = request.user.name
        messages = [*await earlier_messages(owner, body.previous_response_id), *read_input(body.input)]
        system = [Message("system", body.instructions)] if body.instructions else []
        model = await find_model(body.model)
        try:
            chat = await build_chat(body.chat_fields(), [[*system, *messages]], model, self.request_id)
        except InvalidRequest as error:
            raise body.in_its_words(error) from error
        answer = ResponseAnswer(ResponseWriter(new_response(body, model.id), chat), owner, messages)
        chat.request.offline = request.user.offline
        generation = await start(chat.request)
        if body.stream:
            return await self.stream(generation, answer.frames(generation))
        async with generation:
            return json_response(await answer.reply(generation))


class ResponseView(ApiView):
    @operation("Read a stored response", tag="OpenAI", replies=(ResponseObject,), statuses=(404,))
    async def get(self, request: Request, response_id: str) -> HttpResponse:
        stored = await response_store.load(request.user.name, response_id)
        return json_response(stored.response)

    @operation("Forget a stored response", tag="OpenAI", replies=(DeletedResponse,), statuses=(404,))
    async def delete(self, request: Request, response_id: str) -> HttpResponse:
        await response_store.delete(request.user.name, response_id)
        return json_response(DeletedResponse(id=response_id))


class ResponseAnswer:
    """The way out of one request, and into the store."""

    def __init__(self, writer: ResponseWriter, owner: str, messages: list[Message]) -> None:
        self._writer = writer
        self._owner = owner
        self._messages = messages

    async def reply(self, generation: Generation) -> ResponseObject:
        async for _event in self._writer.events(generation):
            pass
        await self._save()
        return self._writer.response

    async def frames(self, generation: Generation) -> AsyncIterator[bytes]:
        try:
            async for event in self._writer.events(generation):
                yield event
        except GenerationFailed as error:
            yield self._writer.failed_event(error)
            return
        await self._save()  # before the client learns that it can go on from here
        yield self._writer.last_event()

    async def _save(self) -> None:
        response = self._writer.response
        if response.store:
            text = "".join(item.text for item in response.output if item.type == "message")
            answer = Message("assistant", text)
            await response_store.save(self._owner, Conversation(response, [*self._messages, answer]))


def _check(body: ResponseBody) -> None:
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"{name}: not supported", param=name)
    if body.tools:
        raise InvalidRequest("tools: not supported here, use /v1/chat/completions", param="tools")
    if body.background:
        raise InvalidRequest("background: not supported, use /v1/batches", param="background")
