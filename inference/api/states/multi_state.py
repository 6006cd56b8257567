"""POST /multi_state/chat/completions: a new branch of a conversation, behind any of its earlier ones.

Branch 0 is the empty beginning. The branch that is continued stays as it is; the reply says the number
of the new one.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from django.http.response import HttpResponseBase
from msgspec import UNSET, Meta, UnsetType
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest, NotFound
from inference.api.edge.openapi import operation
from inference.api.edge.schemas import NO_NUL
from inference.api.edge.sse import json_bytes
from inference.api.generating.model import find_model
from inference.api.generating.sampling import NATIVE
from inference.api.generating.session_key import session_key
from inference.api.generating.turns import Turn, open_branch
from inference.api.native.batch import BatchRoute, batch_reply, send_batch
from inference.api.native.frames import batch_frames
from inference.api.native.replies import BranchCompletion, BranchFrame
from inference.api.rows.choices import Choice
from inference.api.rows.generation import Generation
from inference.api.states.state import SESSION_STATUSES, StateBody, single_prompt, start_turn
from sessions.models import KEY_LENGTH
from sessions.store import branch_key

LONGEST_KEY = KEY_LENGTH - 12  # the key of a branch has a colon and a number behind it
ConversationKey = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY, pattern=NO_NUL)]


class MultiStateBody(StateBody, kw_only=True):
    """`dialogue_idx` must be there; null means 0."""

    session_id: ConversationKey | None = None
    dialogue_idx: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET


class MultiStateChatView(ApiView):
    native_errors = True

    @operation(
        "Continue a branch of a conversation as a new branch",
        tag="sessions",
        request=MultiStateBody,
        replies=(BranchCompletion,),
        statuses=(*SESSION_STATUSES, 404),
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(MultiStateBody)
        if body.dialogue_idx is UNSET:
            raise InvalidRequest("Missing dialogue_idx parameter", param="dialogue_idx")
        key = session_key(request, body.session_id, LONGEST_KEY)
        if not key:
            raise InvalidRequest("Missing session_id parameter", param="session_id")
        single_prompt(body)
        model = await find_model(None)
        index = body.dialogue_idx or 0
        turn = await open_branch(request.user.name, key, index, model)
        if turn is None:
            raise NotFound(f"State not found for dialogue_idx={index}", param="dialogue_idx")
        route = replace(
            MULTI_STATE,
            frames=partial(branch_frames, turn, key),
            reply=partial(branch_reply, turn),
        )
        return await send_batch(self, body, route, await start_turn(self, body, route, model, turn))


MULTI_STATE = BatchRoute(endpoint="multi_state.chat.completions", defaults=NATIVE, reply_id="rwkv7-multi-state")


def branch_reply(
    turn: Turn, generation: Generation, choices: Sequence[Choice], label: str, route: BatchRoute
) -> BranchCompletion:
    reply = batch_reply(generation, choices, label, route)
    return BranchCompletion(
        id=reply.id,
        object=reply.object,
        created=reply.created,
        model=reply.model,
        choices=reply.choices,
        usage=reply.usage,
        dialogue_idx=turn.branch,
    )


async def branch_frames(
    turn: Turn, conversation: str, generation: Generation, label: str, with_usage: bool
) -> AsyncIterator[bytes]:
    async for frame in batch_frames(generation, label, with_usage):
        yield frame
    made = BranchFrame(session_id=branch_key(conversation, turn.branch), dialogue_idx=turn.branch)
    yield b"data: " + json_bytes(made) + b"\n\n"
