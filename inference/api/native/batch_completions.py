"""POST /v1/batch/completions: the native batch as the C++ server has it."""

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.replies import BatchCompletion
from inference.api.generating.sampling import BATCH
from inference.api.native.batch import NATIVE_STATUSES, BatchBody, BatchRoute, answer_batch
from inference.api.native.frames import single_frames

ROUTE = BatchRoute(
    endpoint="batch.completions", defaults=BATCH, reply_id="rwkv7-fast-batch", label=None, frames=single_frames
)


class BatchCompletionsView(ApiView):
    native_errors = True

    @operation(
        "Continue a batch of raw prompts (as the C++ server)",
        tag="native",
        request=BatchBody,
        replies=(BatchCompletion,),
        statuses=NATIVE_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        return await answer_batch(self, request.payload.read(BatchBody), ROUTE)
