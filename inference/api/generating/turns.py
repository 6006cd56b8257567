"""Turns of sessions: what a generation continues, and how it is committed before its end is told.

A turn is open from the moment its session was read until it is released. Its generation hands every
delta through it; with the last one the turn is written to the log, and only then is the client told.
A turn that does not come to its end leaves nothing behind.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from django.conf import settings
from django.db import DatabaseError

from inference.api.edge.database import in_thread
from inference.api.edge.errors import Conflict, InvalidRequest, Unavailable
from inference.api.rows.choices import Delta
from inference.api.rows.engines import bus
from inference.api.rows.request import GenerationRequest, check_state, initial_state
from inference.bus import keys
from inference.bus.affinity import note_home
from inference.bus.call import BusError
from inference.bus.messages import Generate, History, ModelInfo
from inference.text.tokenizer import get_tokenizer
from sessions.lease import Busy, Lease
from sessions.store import (
    Head,
    NewTurn,
    SessionChanged,
    WrongModel,
    WrongStart,
    branch_key,
    commit_branch,
    commit_turn,
    read_head,
)

log = logging.getLogger(__name__)

SEPARATOR = "\n\n"  # between turns, unless the new one begins with it

_settling: set[asyncio.Task[None]] = set()


class Turn:
    """One open turn. `branch` is the number of the new session, where one is made, once it is committed."""

    def __init__(self, head: Head, lease: Lease | None, conversation: str = "") -> None:
        self.head = head
        self.branch = 0
        self._lease = lease
        self._conversation = conversation
        self._begun = time.time()
        self._text = ""
        self._tokens: list[int] = []
        self._request: GenerationRequest | None = None

    @property
    def history(self) -> History:
        return self.head.history

    @property
    def is_first(self) -> bool:
        return not self.head.history.tokens

    def use(self, request: GenerationRequest) -> GenerationRequest:
        """The request, made to continue the session."""
        request.history, request.keep, request.resumable = self.history, True, False
        request.state_key = self.head.key
        self._request = request
        return request

    async def note(self, deltas: list[Delta], engine: str) -> None:
        """Take what `engine` has made and is about to be told. Commits the turn when that is its end.

        Raises ApiError if it cannot.
        """
        for delta in deltas:
            self._text += delta.text
            self._tokens += delta.tokens
            if delta.finish_reason:
                # A stop string may end within a token, so what counts is the text that was shown.
                cut = isinstance(delta.stop_reason, str)
                reply = get_tokenizer().encode(self._text) if cut else self._tokens
                await _to_its_end(self._close(reply, delta.finish_reason, engine, settle=cut))

    async def release(self) -> None:
        if self._lease:
            await self._lease.release()

    async def _close(self, reply: list[int], finish_reason: str, engine: str, *, settle: bool) -> None:
        session = await self._commit(reply, finish_reason)
        await note_home(bus().redis, session, engine)
        if settle:
            self._settle(reply, session)

    async def _commit(self, reply: list[int], finish_reason: str) -> int:
        """Returns the session's primary key."""
        assert self._request is not None, "use() comes first"
        row = self._request.rows[0]
        sampling = json.loads(msgspec.json.encode(row.sampling)) | {"max_tokens": self._request.max_tokens}
        turn = NewTurn(
            prompt=row.prompt,
            reply=reply,
            sampling=sampling,
            finish_reason=finish_reason,
            duration=time.time() - self._begun,
        )
        if self._conversation:
            history, self.branch = await in_database(commit_branch, self.head, self._conversation, turn)
        else:
            history = await in_database(commit_turn, self.head, turn)
        return history.session

    def _settle(self, reply: list[int], session: int) -> None:
        """Have the session's engine bring the state to where the text was cut, while the client reads it."""
        assert self._request is not None
        request = Generate(
            web="",
            row=0,
            model=self._request.model,
            prompt=self._request.rows[0].prompt + reply,
            max_tokens=0,
            history=msgspec.structs.replace(self.history, session=session),
            keep=True,
            request_id=self._request.request_id,
            owner=self.head.owner,
            state_key=self.head.key,
            endpoint="state.settle",
            created=time.time(),
        )
        task = asyncio.create_task(_submit(request))
        _settling.add(task)
        task.add_done_callback(_settling.discard)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await what goes on in a thread even if the client goes: until then the next turn must not begin."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            log.info("a turn whose client had gone was not kept: %s", error)
        raise


async def open_turn(owner: str, key: str, model: ModelInfo) -> Turn:
    """Open the next turn of a session, new or not. Raises Conflict when another one is open for too long."""
    config = settings.RWKV
    wait = config.session_wait_seconds if config.session_busy == "wait" else 0.0
    try:
        lease = await Lease.take(bus().redis, keys.lease(owner, key), wait)
    except Busy as error:
        raise Conflict(f"session {key} is busy with another request", retry_after=1) from error
    try:
        start = check_state(initial_state.get(), model)
        return Turn(await in_database(read_head, owner, key, model, start), lease)
    except BaseException:
        await lease.release()
        raise


async def open_branch(owner: str, conversation: str, index: int, model: ModelInfo) -> Turn | None:
    """A turn that makes a new branch behind branch `index`, which may be open elsewhere. None: no such branch."""
    start = check_state(initial_state.get(), model)
    head = await in_database(read_head, owner, branch_key(conversation, index), model, start)
    if head.session is None and index:
        return None
    head.history.stays = True
    return Turn(head, None, conversation)


async def in_database(work: Callable[..., Any], *args: Any) -> Any:
    """Call `work` in a thread, and translate its exceptions."""
    try:
        return await in_thread(work, *args)
    except SessionChanged as error:
        raise Conflict(f"session {error} was changed meanwhile; this turn is not part of it") from error
    except WrongStart as error:
        raise InvalidRequest(str(error), param="state_id") from error
    except WrongModel as error:
        raise Conflict(str(error)) from error
    except DatabaseError as error:
        log.error("the database refused: %s", error)
        raise Unavailable("the database is not available: the session is as it was", retry_after=5) from error


async def _submit(request: Generate) -> None:
    try:
        await bus().submit([request])
    except BusError as error:  # the next turn does it
        log.info("a state was not brought up to date: %s", error)
