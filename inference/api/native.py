"""The native batch: raw prompts in `contents`, one choice for each, errors as plain strings.

Written for reuse: a native route reads its body, makes its prompts, and calls `answer_batch`.
"""

import time
from collections.abc import AsyncIterator, Sequence

from django.conf import settings
from django.http.response import HttpResponseBase

from inference.api.base import ApiView
from inference.api.errors import InvalidRequest
from inference.api.generation import Choice, Generation, GenerationRequest, Row, start
from inference.api.limits import encode_prompts, new_tokens
from inference.api.model_list import find_model
from inference.api.replies import BatchChoice, BatchCompletion, BatchMessage
from inference.api.responses import json_response
from inference.api.sampling import NATIVE, Defaults, build_sampling, collect_stops
from inference.api.schemas import SamplingFields, StreamOptions
from inference.api.sse import json_bytes, spaced_frame
from inference.api.usage import count_usage

REPLY_ID = "rwkv7-batch"
DEFAULT_LABEL = "rwkv7"  # `model` is a label here: echoed, never looked up
DEFAULT_CHUNK = 4  # new tokens in a frame; clients compute speeds from it


class BatchBody(SamplingFields, kw_only=True):
    contents: list[str] | None = None
    stream_options: StreamOptions | None = None


async def answer_batch(view: ApiView, body: BatchBody, defaults: Defaults = NATIVE) -> HttpResponseBase:
    """Continue every prompt of `contents`, as one reply or as a stream."""
    prompts = body.contents or []
    _check_size(len(prompts))
    stops = collect_stops(body, defaults)
    request = GenerationRequest(
        rows=[
            Row(prompt=ids, sampling=build_sampling(body, defaults, index))
            for index, ids in enumerate(encode_prompts(prompts, "contents"))
        ],
        model=(await find_model(None)).id,
        endpoint="batch.completions",
        request_id=view.request_id,
        max_tokens=new_tokens(body, defaults),
        stop_ids=stops.ids,
        stop_strings=stops.texts,
        include_stop=bool(body.include_stop_str_in_output),
        chunk_size=body.chunk_size or DEFAULT_CHUNK,
    )
    generation = await start(request)
    if body.stream:
        return await view.stream(generation, _frames(generation, body))
    async with generation:
        return json_response(_reply(generation, await generation.collect(), body))


def _check_size(size: int) -> None:
    limit = settings.RWKV.max_rows
    if not size:
        raise InvalidRequest("Empty prompts list", param="contents")
    if size > limit:
        sizes = {"request_bsz": size, "max_bsz": limit}
        raise InvalidRequest(f"bsz overflow, Max bsz={limit}", param="contents", extra=sizes)


def _reply(generation: Generation, choices: Sequence[Choice], body: BatchBody) -> BatchCompletion:
    return BatchCompletion(
        id=REPLY_ID,
        created=int(time.time()),
        model=body.model or DEFAULT_LABEL,
        choices=[
            BatchChoice(choice.index, BatchMessage(content=choice.text), choice.finish_reason) for choice in choices
        ],
        usage=count_usage(generation),
    )


async def _frames(generation: Generation, body: BatchBody) -> AsyncIterator[bytes]:
    """Frames of several choices each, without the empty ones; then one that says how each choice ended."""
    head = frame_head(generation.request.request_id, body.model or DEFAULT_LABEL)
    ends: dict[int, str] = {}
    async for deltas in generation.deltas():
        texts = [_content(delta.index, delta.text) for delta in deltas if delta.text]
        if texts:
            yield spaced_frame(texts, head)
        ends |= {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
    yield spaced_frame([_end(index, reason) for index, reason in sorted(ends.items())], head)
    if body.stream_options and body.stream_options.include_usage:
        usage = count_usage(generation)
        yield spaced_frame([], head)[:-3] + b', "usage": ' + json_bytes(usage) + b"}\n\n"


def frame_head(frame_id: str, label: str) -> bytes:
    return b'"id": %b, "object": "chat.completion.chunk", "created": %d, "model": %b, ' % (
        json_bytes(frame_id),
        time.time(),
        json_bytes(label),
    )


def _content(index: int, text: str) -> bytes:
    return b'{"index": %d, "delta": {"content": %b}}' % (index, json_bytes(text))


def _end(index: int, reason: str) -> bytes:
    return b'{"index": %d, "delta": {}, "finish_reason": %b}' % (index, json_bytes(reason))
