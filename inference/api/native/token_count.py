"""POST /v1/tokens/count: how many tokens a text has."""

import asyncio

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.generating.prompts import Message, render_chat, think_style
from inference.api.native.replies import TokenCount
from inference.text.tokenizer import get_tokenizer


class TokenCountBody(msgspec.Struct, kw_only=True):
    """One of three: a text, a conversation as /v1/chat/completions takes it, or texts to be joined."""

    text: str | None = None
    messages: list[Message] | None = None
    contents: list[str] | None = None
    system: str | None = None
    enable_think: bool | None = None
    think: bool | None = None
    think_type: str | None = None


class TokenCountView(ApiView):
    native_errors = True

    @operation(
        "Count tokens",
        tag="native",
        request=TokenCountBody,
        replies=(TokenCount,),
        statuses=(400,),
    )
    async def post(self, request: Request) -> HttpResponse:
        text = _text(request.payload.read(TokenCountBody))
        try:
            tokens = await asyncio.to_thread(get_tokenizer().encode, text)
        except ValueError as error:  # a lone surrogate
            raise InvalidRequest(str(error)) from error
        return json_response(TokenCount(len(tokens)))


def _text(body: TokenCountBody) -> str:
    if body.text is not None:
        return body.text
    if body.messages:
        style = think_style(body.think_type, body.think, body.enable_think)
        return render_chat(body.messages, system=body.system, style=style).text
    if body.contents:
        return "".join(body.contents)
    raise InvalidRequest("Missing text or messages")
