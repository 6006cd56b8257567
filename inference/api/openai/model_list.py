"""GET /v1/models and /v1/models/{id}: what the live engines have loaded."""

from django.conf import settings
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import NotFound, Unavailable
from inference.api.edge.openapi import operation
from inference.api.edge.replies import Model, ModelList
from inference.api.edge.responses import json_response
from inference.api.generating.generation import live_engines, live_models
from inference.bus.call import NoEngine
from inference.bus.messages import ModelInfo

# Names that clients of the older RWKV servers send whatever is loaded. They mean the first model.
ANY_MODEL = ("", "rwkv7", "rwkv-7-world")


class ModelListView(ApiView):
    may_be_open = True

    @operation("List the loaded models", tag="models", replies=(ModelList,), operation_id="list_models")
    async def get(self, request: Request) -> HttpResponse:
        models = await live_models()
        return json_response(
            ModelList(
                data=[describe(model) for model in models],
                loaded=models[0].id if models else None,
                available=sorted({model for engine in await live_engines() for model in engine.available}),
            )
        )


class ModelView(ApiView):
    may_be_open = True

    @operation("Describe one loaded model", tag="models", replies=(Model,), statuses=(404,))
    async def get(self, request: Request, model: str) -> HttpResponse:
        name = model.removesuffix("/")
        for info in await live_models():
            if info.id == name:
                return json_response(describe(info))
        raise _unknown(name)


def describe(model: ModelInfo) -> Model:
    config = settings.RWKV
    return Model(
        id=model.id,
        created=model.created,
        root=model.id,
        max_model_len=config.max_prompt_tokens + config.max_new_tokens,
        description="Random weights: this model's text means nothing." if model.random else None,
    )


async def find_model(name: str | None) -> ModelInfo:
    """The loaded model of that name; the first one for None and the names in ANY_MODEL.

    Raises NotFound for another name, and Unavailable when no model is loaded at all.
    """
    models = await live_models()
    if not models:
        raise Unavailable("no model is loaded", retry_after=NoEngine.retry_after)
    for model in models:
        if model.id == name:
            return model
    if name is None or name in ANY_MODEL:
        return models[0]
    raise _unknown(name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"model: {name!r} is not loaded here; see /v1/models", param="model", code="model_not_found")
