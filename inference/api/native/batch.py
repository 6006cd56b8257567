"""The native batch: raw prompts, one choice for each, errors as plain strings.

Written for reuse: a native route reads its body, makes its prompts, and calls `answer_batch` with
the `BatchRoute` that says what sets it apart.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase

from inference.api.edge.base import ApiView
from inference.api.edge.errors import BatchTooLarge, InvalidRequest
from inference.api.edge.replies import BatchChoice, BatchCompletion, BatchMessage
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import SamplingFields, StreamOptions
from inference.api.edge.sse import error_stream
from inference.api.generating.limits import encode_prompts, new_tokens
from inference.api.generating.model import find_model
from inference.api.generating.sampling import NATIVE, Defaults, build_sampling, collect_stops
from inference.api.generating.usage import count_usage
from inference.api.native.frames import batch_frames
from inference.api.rows.choices import Choice
from inference.api.rows.generation import Generation, start
from inference.api.rows.request import GenerationRequest, Row
from inference.bus.messages import END_OF_TEXT, ModelInfo, Sampling

NATIVE_STATUSES = (400, 500)


class BatchBody(SamplingFields, kw_only=True):
    contents: list[str] | None = None
    stream_options: StreamOptions | None = None


def batch_reply(generation: Generation, choices: Sequence[Choice], label: str, route: "BatchRoute") -> BatchCompletion:
    return BatchCompletion(
        id=route.reply_id,
        object=route.object,
        created=int(time.time()),
        model=label,
        choices=[
            BatchChoice(choice.index, BatchMessage(content=choice.text), choice.finish_reason) for choice in choices
        ],
        usage=count_usage(generation),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRoute:
    """What sets one native route apart from the others."""

    endpoint: str  # its name in the engine's status
    defaults: Defaults
    reply_id: str = "rwkv7-batch"
    object: str = "chat.completion"
    label: str | None = "rwkv7"  # `model` of a reply to a body that names none; None: the loaded model's id
    sampling: Callable[[SamplingFields, Defaults, int], Sampling] = build_sampling
    frames: Callable[[Generation, str, bool], AsyncIterator[bytes]] = batch_frames
    reply: Callable[[Generation, Sequence[Choice], str, "BatchRoute"], BatchCompletion] = batch_reply


V1 = BatchRoute(endpoint="batch.completions", defaults=NATIVE)


async def answer_batch(
    view: ApiView,
    body: BatchBody,
    route: BatchRoute = V1,
    prompts: Sequence[str] | None = None,
    *,
    pad_zero: bool = False,
) -> HttpResponseBase:
    """Continue every prompt, `contents` where none are given, as one reply or as a stream.

    `pad_zero` puts the end of text in front of each, which the model knows as the start of a new one.
    """
    prompts = (body.contents or []) if prompts is None else prompts
    try:
        check_size(len(prompts), "contents")
    except BatchTooLarge as error:
        if body.stream:
            return error_stream(error)
        raise
    padding = [END_OF_TEXT] if pad_zero else []
    model = await find_model(None)  # `model` is a label on these routes: echoed, never looked up
    request = build_batch(view, body, route, model, [padding + ids for ids in encode_prompts(prompts, "contents")])
    generation = await start(request)
    return await send_batch(view, body, route, generation)


def build_batch(
    view: ApiView, body: BatchBody, route: BatchRoute, model: ModelInfo, prompts: Sequence[list[int]]
) -> GenerationRequest:
    """One row for each prompt. Raises InvalidRequest."""
    stops = collect_stops(body, route.defaults)
    return GenerationRequest(
        rows=[
            Row(prompt=ids, sampling=route.sampling(body, route.defaults, index)) for index, ids in enumerate(prompts)
        ],
        model=model.id,
        endpoint=route.endpoint,
        request_id=view.request_id,
        max_tokens=new_tokens(body, route.defaults),
        stop_ids=stops.ids,
        stop_strings=stops.texts,
        include_stop=bool(body.include_stop_str_in_output),
        chunk_size=body.chunk_size or route.defaults.chunk_size,
        offline=view.request.user.offline,
    )


async def send_batch(view: ApiView, body: BatchBody, route: BatchRoute, generation: Generation) -> HttpResponseBase:
    """A running batch as one reply, or as a stream."""
    label = body.model or route.label or generation.request.model
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return await view.stream(generation, route.frames(generation, label, with_usage))
    async with generation:
        return json_response(route.reply(generation, await generation.collect(), label, route))


def check_size(size: int, param: str, empty: str = "Empty prompts list") -> None:
    """Raises InvalidRequest for no prompt at all, and for more than one request may have."""
    limit = settings.RWKV.max_rows
    if not size:
        raise InvalidRequest(empty, param=param)
    if size > limit:
        sizes: dict[str, Any] = {"request_bsz": size, "max_bsz": limit}
        raise BatchTooLarge(f"bsz overflow, Max bsz={limit}", param=param, extra=sizes)
