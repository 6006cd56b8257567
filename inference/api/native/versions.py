"""POST /v2/chat/completions and /v3/chat/completions, which the older Python servers had."""

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.replies import BatchCompletion
from inference.api.generating.prompts import Message, content_text
from inference.api.generating.sampling import V2, V3
from inference.api.native.batch import NATIVE_STATUSES, BatchBody, BatchRoute, answer_batch

V2_ROUTE = BatchRoute(endpoint="v2.chat.completions", defaults=V2)
V3_ROUTE = BatchRoute(endpoint="v3.chat.completions", defaults=V3, reply_id="rwkv7-batch-v3")


class V2Body(BatchBody, kw_only=True):
    pad_zero: bool | None = None


class V3Body(BatchBody, kw_only=True):
    messages: list[Message] | None = None
    enable_think: bool | None = None


class V2View(ApiView):
    native_errors = True

    @operation(
        "Continue a batch of raw prompts, each behind token 0",
        tag="native",
        request=V2Body,
        replies=(BatchCompletion,),
        statuses=NATIVE_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(V2Body)
        return await answer_batch(self, body, V2_ROUTE, pad_zero=body.pad_zero is not False)


class V3View(ApiView):
    native_errors = True

    @operation(
        "Answer one question",
        tag="native",
        request=V3Body,
        replies=(BatchCompletion,),
        statuses=NATIVE_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(V3Body)
        prompts = [question_prompt(text, think=bool(body.enable_think)) for text in _questions(body)[:1]]
        return await answer_batch(self, body, V3_ROUTE, prompts)


def question_prompt(question: str, *, think: bool) -> str:
    tail = " <think" if think else " <think>\n</think>"
    return f"User: {question}\n\nAssistant:{tail}"


def _questions(body: V3Body) -> list[str]:
    """`contents`, else what the user said, else everything that was said. The older servers answer the first alone."""
    messages = body.messages or []
    said = [message for message in messages if message.role == "user"] or messages
    return body.contents or [content_text(message.content) for message in said]
