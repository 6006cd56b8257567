"""POST /state/chat/completions: one raw prompt behind everything its session holds already."""

from typing import Annotated

from django.http.response import HttpResponseBase
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.replies import BatchCompletion
from inference.api.edge.schemas import NO_NUL
from inference.api.generating.limits import encode_prompts
from inference.api.generating.model import find_model
from inference.api.generating.sampling import NATIVE
from inference.api.generating.session_key import session_key
from inference.api.generating.turns import SEPARATOR, Turn, open_turn
from inference.api.native.batch import NATIVE_STATUSES, BatchBody, BatchRoute, answer_batch, build_batch, send_batch
from inference.api.rows.generation import Generation, start
from inference.bus.messages import ModelInfo
from sessions.models import KEY_LENGTH

SessionKey = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH, pattern=NO_NUL)]

STATE = BatchRoute(endpoint="state.chat.completions", defaults=NATIVE)
SESSION_STATUSES = (*NATIVE_STATUSES, 409)


class StateBody(BatchBody, kw_only=True):
    """`turn_separator` is put between the history and a prompt that does not begin with it; "" puts nothing."""

    session_id: SessionKey | None = None
    turn_separator: Annotated[str, Meta(max_length=100)] | None = None


class StateChatView(ApiView):
    native_errors = True

    @operation(
        "Continue a session by one raw prompt",
        tag="sessions",
        request=StateBody,
        replies=(BatchCompletion,),
        statuses=SESSION_STATUSES,
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(StateBody)
        single_prompt(body)
        key = session_key(request, body.session_id)
        if not key:
            return await answer_batch(self, body, STATE)  # nothing is kept
        model = await find_model(None)
        turn = await open_turn(request.user.name, key, model)
        generation = await start_turn(self, body, STATE, model, turn)
        return await send_batch(self, body, STATE, generation)


def single_prompt(body: BatchBody) -> str:
    """Raises InvalidRequest."""
    if len(body.contents or []) != 1:
        raise InvalidRequest("Request must contain exactly one prompt", param="contents")
    return body.contents[0]


async def start_turn(view: ApiView, body: StateBody, route: BatchRoute, model: ModelInfo, turn: Turn) -> Generation:
    """Start an open turn, which is released if it cannot be. Raises InvalidRequest, NoEngine or QueueFull."""
    try:
        text = single_prompt(body)
        if not turn.is_first:
            text = behind_history(text, body.turn_separator)
        request = build_batch(view, body, route, model, encode_prompts([text], "contents"))
        return await start(turn.use(request), turn)
    except BaseException:
        await turn.release()
        raise


def behind_history(text: str, separator: str | None) -> str:
    """The prompt as it is fed behind earlier turns. An empty one stays so: it is the end of a text, as anywhere."""
    separator = SEPARATOR if separator is None else separator
    return text if not text or text.startswith(separator) else separator + text
