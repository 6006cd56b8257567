"""POST /v1/embeddings: not offered, and why."""

from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import NotFound
from inference.api.edge.openapi import operation


class EmbeddingsView(ApiView):
    @operation("Embeddings are not offered", tag="OpenAI", statuses=(400, 404))
    async def post(self, request: Request) -> HttpResponse:
        raise NotFound(
            "embeddings are not offered: RWKV language models are not trained to give vectors that can be compared; "
            "use an embedding model",
            code="model_not_found",
        )
