"""POST /v1/model/load: have the engines change to another checkpoint of the folder they serve from."""

import asyncio
import time

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import ApiError, InvalidRequest, Unavailable
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.generating.generation import bus, live_engines
from inference.api.native.replies import LoadedModel
from inference.bus.call import NoEngine
from inference.bus.client import STATUS_SECONDS
from inference.bus.messages import EngineStatus

# Running requests are served first, and a large checkpoint takes minutes to read.
LOAD_SECONDS = 1800.0
POLL_SECONDS = 0.2


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
        statuses=(400, 500),
    )
    async def post(self, request: Request) -> HttpResponse:
        """Answers when the model is ready. What was queued for the old one is served first."""
        model = request.payload.read(LoadBody).model
        if not model:
            raise InvalidRequest("'model' is required", param="model")
        engines = await live_engines()
        if not engines:
            raise Unavailable("no engine is running", retry_after=NoEngine.retry_after)
        if not _ready(engines, model):
            able = [engine.engine for engine in engines if model in engine.available]
            if not able:
                raise InvalidRequest(f"unknown model: {model}", param="model")
            await bus().load_model(able, model)
            await _wait_until_ready(model, {engine.engine for engine in engines})
        return json_response(LoadedModel(id=model))


async def _wait_until_ready(model: str, before: set[str]) -> None:
    """`before`: the names of the engines as they were; one that loads a model takes a new name.

    Raises ApiError when an engine went back to its old model, and Unavailable after LOAD_SECONDS.
    """
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        ready = [engine for engine in await live_engines() if engine.state == "ready"]
        failed = any(engine.failed_model == model and engine.engine not in before for engine in ready)
        if failed or _ready(ready, model):
            await asyncio.sleep(STATUS_SECONDS)  # then the other web processes know what is loaded, too
            if failed:
                raise ApiError(f"the model could not be loaded: {model}")
            return
        await asyncio.sleep(POLL_SECONDS)
    raise Unavailable(f"the model is still being loaded: {model}", retry_after=NoEngine.retry_after)


def _ready(engines: list[EngineStatus], model: str) -> bool:
    return any(engine.state == "ready" and engine.model and engine.model.id == model for engine in engines)
