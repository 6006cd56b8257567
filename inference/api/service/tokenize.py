"""/tokenize, /detokenize and /tokenizer_info: vLLM's, which evaluation tools ask for."""

import asyncio
from typing import Annotated

import msgspec
from django.conf import settings
from django.http import HttpResponse
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import TokenId
from inference.api.generating.prompts import NO_THINKING, Message, render_chat, think_style
from inference.api.service.replies import Detokenized, Tokenized, TokenizerInfo
from inference.bus.messages import END_OF_TEXT
from inference.text.tokenizer import END_OF_TEXT_NAME, get_tokenizer

# What `render_chat` does with plain messages, for clients that do it themselves.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set name = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}[message.role] -%}
{{ name }}: {{ message.content.strip() }}{{ "\\n\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}Assistant: <think>{{ "\\n" }}</think>{{ "\\n" }}{%- endif -%}
"""


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text, or a conversation as /v1/chat/completions takes it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None  # changes nothing: no token is put in front of a text
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=10_000_000)]


class TokenizeView(ApiView):
    @operation(
        "Turn text into token ids",
        tag="vLLM",
        request=TokenizeBody,
        replies=(Tokenized,),
        statuses=(400,),
    )
    async def post(self, request: Request) -> HttpResponse:
        body = request.payload.read(TokenizeBody)
        try:
            tokens = await asyncio.to_thread(encode_special, _text(body))
        except ValueError as error:  # a lone surrogate
            raise InvalidRequest(f"prompt: {error}", param="prompt") from error
        names = [get_tokenizer().token_text(token) for token in tokens] if body.return_token_strs else None
        return json_response(Tokenized(len(tokens), _longest(), tokens, names))


class DetokenizeView(ApiView):
    @operation(
        "Turn token ids into text",
        tag="vLLM",
        request=DetokenizeBody,
        replies=(Detokenized,),
        statuses=(400,),
    )
    async def post(self, request: Request) -> HttpResponse:
        tokens = request.payload.read(DetokenizeBody).tokens
        return json_response(Detokenized(await asyncio.to_thread(decode_special, tokens)))


class TokenizerInfoView(ApiView):
    @operation("Describe the tokenizer", tag="vLLM", replies=(TokenizerInfo,))
    async def get(self, request: Request) -> HttpResponse:
        special = {"content": END_OF_TEXT_NAME, "special": True}
        return json_response(
            TokenizerInfo(
                bos_token=END_OF_TEXT_NAME,
                eos_token=END_OF_TEXT_NAME,
                pad_token=END_OF_TEXT_NAME,
                model_max_length=_longest(),
                chat_template=CHAT_TEMPLATE,
                added_tokens_decoder={str(END_OF_TEXT): special},
            )
        )


def encode_special(text: str) -> list[int]:
    """Like a prompt's ids, but the name of the end of text stands for its id. Raises ValueError."""
    first, *others = [get_tokenizer().encode(part) for part in text.split(END_OF_TEXT_NAME)]
    return [*first, *[token for part in others for token in (END_OF_TEXT, *part)]]


def decode_special(tokens: list[int]) -> str:
    table = get_tokenizer().table
    name = END_OF_TEXT_NAME.encode()
    return b"".join([table[token] if token != END_OF_TEXT else name for token in tokens]).decode(errors="replace")


def _text(body: TokenizeBody) -> str:
    if body.prompt is not None:
        return body.prompt
    if not body.messages:
        raise InvalidRequest("prompt: expected a string, or messages", param="prompt")
    text = render_chat(body.messages, style=think_style(None, None, None)).text
    return text.removesuffix(f"Assistant:{NO_THINKING}") if body.add_generation_prompt is False else text


def _longest() -> int:
    return settings.RWKV.max_prompt_tokens + settings.RWKV.max_new_tokens
