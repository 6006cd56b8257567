"""POST /v1/model/load: have the engines change to another checkpoint of the folder they serve from."""

import asyncio
import time
from collections.abc import Sequence

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import ApiError, Forbidden, InvalidRequest, Unavailable
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.native.replies import LoadedModel
from inference.api.rows.engines import bus, live_engines
from inference.bus.call import NoEngine
from inference.bus.live_engines import STATUS_SECONDS
from inference.bus.messages import EngineStatus

# Running requests are served first, and a large checkpoint takes minutes to read.
LOAD_SECONDS = 1800.0
POLL_SECONDS = 0.2
LOST_SECONDS = 60.0  # an engine that loads a model is silent for as long as a program takes to start


class LoadBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    password: str | None = None


class ModelLoadView(ApiView):
    native_errors = True

    @operation(
        "Change to another model",
        tag="native",
        request=LoadBody,
        replies=(LoadedModel,),
        statuses=(400, 403, 500),
    )
    async def post(self, request: Request) -> HttpResponse:
        """Answers when the model is ready on every engine that can load it.

        What was queued for the old one is served first.
        """
        if not request.user.may_change_model:
            raise Forbidden("a key may not change the model that everyone uses; the shared password may")
        model = request.payload.read(LoadBody).model
        if not model:
            raise InvalidRequest("'model' is required", param="model")
        engines = await live_engines()
        if not engines:
            raise Unavailable("no engine is running", retry_after=NoEngine.retry_after)
        others = [engine for engine in engines if not _serves(engine, model)]
        able = [engine for engine in others if model in engine.available]
        if not able and len(others) == len(engines):
            raise InvalidRequest(f"unknown model: {model}", param="model")
        if able:
            await bus().load_model([engine.engine for engine in able], model)
            await _wait_until_ready(model, able)
        return json_response(LoadedModel(id=model))


async def _wait_until_ready(model: str, told: Sequence[EngineStatus]) -> None:
    """`told`: the engines that are to load the model, as they were before.

    Raises ApiError when one of them serves another one instead, and Unavailable after LOAD_SECONDS or when one of them
    is gone for LOST_SECONDS.
    """
    waiting = {_process(engine): time.monotonic() for engine in told}  # when each was last seen
    names = {engine.engine for engine in told}
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        failed = False
        for engine in await live_engines():
            if _process(engine) not in waiting:
                continue
            waiting[_process(engine)] = time.monotonic()
            if engine.state == "ready" and engine.engine not in names:  # a process that loads a model takes a new name
                failed |= not _serves(engine, model)  # it cannot, or somebody else wanted another one since
                del waiting[_process(engine)]
        if failed or not waiting:
            await asyncio.sleep(STATUS_SECONDS)  # then the other web processes know what is loaded, too
            if failed:
                raise ApiError(f"the model could not be loaded: {model}")
            return
        if min(waiting.values()) < time.monotonic() - LOST_SECONDS:
            raise Unavailable("an engine was lost while it loaded the model", retry_after=NoEngine.retry_after)
        await asyncio.sleep(POLL_SECONDS)
    raise Unavailable(f"the model is still being loaded: {model}", retry_after=NoEngine.retry_after)


def _serves(engine: EngineStatus, model: str) -> bool:
    return engine.state == "ready" and engine.model is not None and engine.model.id == model


def _process(engine: EngineStatus) -> tuple[str, int]:
    return engine.host, engine.pid
