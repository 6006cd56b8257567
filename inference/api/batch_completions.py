"""POST /v1/batch/completions: the native batch as the C++ server has it."""

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from inference.api.base import ApiView
from inference.api.native import NATIVE_STATUSES, BatchBody, BatchRoute, answer_batch
from inference.api.native_frames import single_frames
from inference.api.openapi import operation
from inference.api.replies import BatchCompletion
from inference.api.sampling import BATCH

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
