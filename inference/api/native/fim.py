"""POST /FIM/v1/batch-FIM: fill in the middle between each prefix and its suffix."""

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.openapi import operation
from inference.api.edge.replies import BatchCompletion
from inference.api.generating.sampling import FIM
from inference.api.native.batch import NATIVE_STATUSES, BatchBody, BatchRoute, answer_batch

ROUTE = BatchRoute(endpoint="fim.completions", defaults=FIM, object="FIM.completion")


class FimBody(BatchBody, kw_only=True):
    """Pairs; what one list has more than the other is left out."""

    prefix: list[str] | None = None
    suffix: list[str] | None = None


class FimView(ApiView):
    native_errors = True

    @operation(
        "Fill in the middle of a batch of texts",
        tag="native",
        request=FimBody,
        replies=(BatchCompletion,),
        statuses=NATIVE_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(FimBody)
        pairs = zip(body.prefix or [], body.suffix or [], strict=False)
        return await answer_batch(self, body, ROUTE, [fim_prompt(prefix, suffix) for prefix, suffix in pairs])


def fim_prompt(prefix: str, suffix: str) -> str:
    """The suffix comes first and the prefix last, so that the model goes on from the prefix."""
    return f"✿prefix✿✿suffix✿{suffix}✿middle✿{prefix}"
