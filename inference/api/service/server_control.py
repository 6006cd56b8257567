"""/v1/server/status, stop, pause and resume: look at running requests, and end or interrupt them.

A request's id is the one that its stream carries. Any web process takes an order for any request.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

import msgspec
from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from msgspec import UNSET
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest, NotFound
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import SamplingFields
from inference.api.generating.limits import new_tokens
from inference.api.generating.model import find_model
from inference.api.generating.sampling import NATIVE, change_sampling
from inference.api.native.frames import single_frames
from inference.api.native.replies import (
    Capabilities,
    Paused,
    PausedStatus,
    PrefillQueue,
    RequestStatus,
    ServedModel,
    ServerStatus,
    Stopped,
)
from inference.api.rows.engines import bus, live_engines
from inference.api.rows.generation import start
from inference.api.rows.request import GenerationRequest, Row, caller
from inference.bus.messages import EngineStatus, RunningRequest
from inference.bus.paused import PausedRequest

CONTROL_STATUSES = (400,)


class ControlBody(msgspec.Struct, kw_only=True):
    request_id: str | None = None
    password: str | None = None


class ResumeBody(SamplingFields, kw_only=True):
    """Fields that are not given stay as they were; `max_tokens` is how many more there may be."""

    request_id: str | None = None
    session_id: str | None = None  # the same id: where other servers keep the state of a paused request


class ServerStatusView(ApiView):
    native_errors = True
    may_be_open = True

    @operation("What the server is doing", tag="native", replies=(ServerStatus,))
    async def get(self, request: Request) -> HttpResponse:
        owner = scope(request)
        engines = await live_engines()
        running, over = await bus().give_order("list", owner=owner), await bus().give_order("last", owner=owner)
        return json_response(server_status(engines, running, over, await bus().paused(owner)))


class StopView(ApiView):
    native_errors = True

    @operation(
        "Stop a running request, or all",
        tag="native",
        request=ControlBody,
        replies=(Stopped,),
        statuses=CONTROL_STATUSES,
    )
    async def post(self, request: Request) -> HttpResponse:
        body = request.payload.read(ControlBody)
        found = await bus().give_order("stop", body.request_id or "", scope(request))
        status = _newest(request_statuses(found, await live_engines()))
        if status:
            status.stop_requested = True
        return json_response(Stopped(True, bool(found), status))


class PauseView(ApiView):
    native_errors = True

    @operation(
        "Pause a running request, the newest if none is named",
        tag="native",
        request=ControlBody,
        replies=(Paused,),
        statuses=(*CONTROL_STATUSES, 404),
    )
    async def post(self, request: Request) -> HttpResponse:
        request_id, owner = request.payload.read(ControlBody).request_id, scope(request)
        if not request_id:
            running = await bus().give_order("list", owner=owner)
            newest = max(running, key=lambda request: request.created, default=None)
            request_id = newest.id if newest else ""
        found = await bus().give_order("pause", request_id, owner) if request_id else []
        if not found:
            raise NotFound("Running request not found", param="request_id")
        status = _newest(request_statuses(found, await live_engines()))
        assert status
        status.pause_requested = True
        return json_response(Paused(True, True, request_id, status))


class ResumeView(ApiView):
    native_errors = True

    @operation(
        "Resume a paused request, as a stream",
        tag="native",
        request=ResumeBody,
        statuses=(*CONTROL_STATUSES, 404),
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(ResumeBody)
        request_id = body.request_id or body.session_id
        if not request_id:
            raise InvalidRequest("Missing request_id", param="request_id")
        async with bus().resuming(request_id, scope(request)) as paused:
            if paused is None:
                raise NotFound("Paused request not found", param="request_id")
            caller.set(paused.about.owner)  # also where an operator resumes it
            rest = resumed_request(paused, body)
            await find_model(rest.model)
            generation = await start(rest)
        return await self.stream(generation, single_frames(generation, rest.model, False, list(paused.generated)))


def scope(request: Request) -> str | None:
    """Whose requests the caller rules over: its own, or everyone's (None)."""
    if request.user is None:  # an open route
        return ""
    return None if request.user.operator else request.user.name


def resumed_request(paused: PausedRequest, body: ResumeBody) -> GenerationRequest:
    """The rows that had not ended, to go on behind their last tokens."""
    request = msgspec.msgpack.decode(paused.note, type=GenerationRequest)
    rows = [
        Row(
            prompt=request.rows[index].prompt,
            sampling=change_sampling(request.rows[index].sampling, body),
            generated=tokens,
        )
        for index, tokens in paused.generated.items()
    ]
    max_tokens = request.max_tokens
    if body.max_tokens is not None:
        max_tokens = max(map(len, paused.generated.values())) + new_tokens(body, NATIVE)
    return replace(
        request,
        rows=rows,
        endpoint="server.resume",
        max_tokens=max_tokens,
        chunk_size=body.chunk_size or request.chunk_size,
        logprobs=-1,
        prompt_logprobs=-1,
    )


def server_status(
    engines: list[EngineStatus],
    running: list[RunningRequest],
    over: list[RunningRequest],
    paused: list[RunningRequest],
) -> ServerStatus:
    ready = [engine for engine in engines if engine.model]
    first = ready[0] if ready else None
    slots = sum(engine.slots for engine in ready)
    memories = {(engine.host, engine.device): engine for engine in ready}.values()  # engines may share a device
    requests = request_statuses(running, engines)
    return ServerStatus(
        engine_version=f"{settings.SPECTACULAR_SETTINGS['VERSION']}-{first.backend}" if first else "",
        model=ServedModel(first.model.id, first.model.id, first.model.id) if first and first.model else None,
        capabilities=Capabilities(),
        prefill_chunk_size=first.step_tokens if first else 0,
        prefill_queue=PrefillQueue(
            hard_max_bsz=settings.RWKV.max_rows,
            dynamic_max_bsz=slots,
            available_bsz=max(0, slots - sum(engine.running for engine in ready)),
            queued_requests=sum(engine.waiting for engine in ready),
            free_vram_bytes=sum(engine.memory_free for engine in memories),
            total_vram_bytes=sum(engine.memory_total for engine in memories),
            bytes_per_bsz=first.state_bytes if first else 0,
        ),
        active_request=_newest(requests),
        active_requests=requests,
        last_request=_newest(request_statuses(sorted(over, key=lambda request: request.finished)[-1:], [])),
        paused_requests=[
            PausedStatus(request.id, request.endpoint, request.model, int(request.created), request.generated_tokens)
            for request in paused
        ],
    )


def request_statuses(running: Iterable[RunningRequest], engines: Iterable[EngineStatus]) -> list[RequestStatus]:
    """Oldest first. How far the prompts are is the engines' news, which is up to a second old."""
    prefilled: dict[str, int] = {}
    for row in (row for engine in engines for row in engine.rows):
        prefilled[row.request_id] = prefilled.get(row.request_id, 0) + row.prefilled_tokens
    return [
        _request_status(request, prefilled.get(request.id, 0))
        for request in sorted(running, key=lambda request: request.created)
    ]


def _request_status(request: RunningRequest, prefilled: int) -> RequestStatus:
    seconds = max((request.finished or time.time()) - request.created, 1e-3)
    done = request.prompt_tokens if request.generated_tokens else min(prefilled, request.prompt_tokens)
    return RequestStatus(
        id=request.id,
        endpoint=request.endpoint,
        model=request.model,
        created=int(request.created),
        finished=int(request.finished) or None,
        prompt_tokens=request.prompt_tokens,
        prefilled_tokens=done,
        generated_tokens=request.generated_tokens,
        max_tokens=request.max_tokens,
        prefill_progress=done / max(request.prompt_tokens, 1),
        prefill_speed=done / seconds,
        decode_speed=request.generated_tokens / seconds,
        state_key=request.state_key or UNSET,
    )


def _newest(requests: list[RequestStatus]) -> RequestStatus | None:
    return requests[-1] if requests else None
