"""GET /v1/models and /v1/models/{id}: what the live engines have loaded."""

from django.conf import settings
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.replies import Model, ModelList
from inference.api.edge.responses import json_response
from inference.api.generating.model import unknown_model
from inference.api.rows.engines import live_engines, live_models
from inference.bus.messages import ModelInfo


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
        raise unknown_model(name)


def describe(model: ModelInfo) -> Model:
    config = settings.RWKV
    return Model(
        id=model.id,
        created=model.created,
        root=model.id,
        max_model_len=config.max_prompt_tokens + config.max_new_tokens,
        description="Random weights: this model's text means nothing." if model.random else None,
    )
