"""POST /v1/chat/completions/batch: vLLM's; several conversations, one choice for each."""

from typing import Annotated

from django.http.response import HttpResponseBase
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.replies import ChatCompletion
from inference.api.edge.responses import json_response
from inference.api.generating.model import find_model
from inference.api.generating.prompts import Message
from inference.api.openai.chat import CHAT_STATUSES, ChatAnswer
from inference.api.openai.chat_request import ChatFields, build_chat, new_chat_id
from inference.api.rows.generation import start


class ChatBatchBody(ChatFields, kw_only=True):
    messages: Annotated[list[list[Message]], Meta(min_length=1)]


class ChatBatchView(ApiView):
    @operation(
        "Answer several chats", tag="vLLM", request=ChatBatchBody, replies=(ChatCompletion,), statuses=CHAT_STATUSES
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(ChatBatchBody)
        if body.stream:
            raise InvalidRequest("stream: not supported here", param="stream")
        if (body.n or 1) > 1:
            raise InvalidRequest("n: expected 1", param="n")
        model = await find_model(body.model)
        chat = await build_chat(body, body.messages, model, new_chat_id())
        async with await start(chat.request) as generation:
            return json_response(ChatAnswer(chat, body, model).reply(generation, await generation.collect()))
