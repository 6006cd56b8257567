"""Sessions to and from files: the whole log as JSON, the state as a `.pth`."""

import json
from typing import IO, Annotated, Any

import msgspec
from django.db import transaction
from msgspec import Meta

from inference.bus.messages import ModelInfo
from inference.history import unpack_ids
from sessions.initial_states import find_state, shape_of
from sessions.models import KEY_LENGTH, Session, SnapshotData
from sessions.state_file import write_state
from sessions.states import checksum
from sessions.store import NewTurn, SessionChanged, commit_turn, read_head
from sessions.transcript import read_transcript

MOST_IMPORT_BYTES = 64 * 2**20

TokenIds = list[Annotated[int, Meta(ge=0, le=65535)]]


class CannotTransfer(Exception):
    """Why a file cannot be made of a session, or a session of a file, in one line."""


class ExportedTurn(msgspec.Struct):
    """Of the fields that an exported turn has, those that a session is made of."""

    prompt_ids: Annotated[TokenIds, Meta(min_length=1)]
    reply_ids: TokenIds
    finish_reason: Annotated[str, Meta(max_length=20)]
    sampling: dict[str, Any] = {}
    duration: Annotated[float, Meta(ge=0)] = 0.0


class ExportedSession(msgspec.Struct):
    session: Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH)]
    model: Annotated[str, Meta(max_length=200)]
    fingerprint: Annotated[str, Meta(min_length=1, max_length=64)]
    turns: Annotated[list[ExportedTurn], Meta(min_length=1)]
    start: str = ""  # the state_id that it began with


def as_json(session: Session) -> str:
    """The whole log, those before a branch included: what `import_session` makes the same session of."""
    turns = [
        {
            "number": turn.number,
            "prompt": turn.prompt,
            "reply": turn.reply,
            "prompt_ids": turn.prompt_ids,
            "reply_ids": turn.reply_ids,
            "finish_reason": turn.finish_reason,
            "sampling": turn.sampling,
            "created": turn.created.isoformat(),
            "duration": turn.duration,
        }
        for turn in read_transcript(session)
    ]
    about = {"session": session.key, "model": session.model, "fingerprint": session.model_fingerprint}
    about |= {"start": session.start.key} if session.start else {}
    return json.dumps(about | {"tokens": session.token_count, "turns": turns}, ensure_ascii=False, indent=1)


def import_session(owner: str, key: str, content: bytes) -> Session:
    """Make a session of what `as_json` wrote; without a key it has its old one. Raises CannotTransfer."""
    try:
        exported = msgspec.json.decode(content, type=ExportedSession)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CannotTransfer(f"this is no exported session: {error}") from error
    key = key or exported.session
    model = ModelInfo(id=exported.model, layers=0, width=0, vocab=0, parameters=0, fingerprint=exported.fingerprint)
    start = find_state(owner, exported.start) if exported.start else None
    if exported.start and (start is None or start.model_fingerprint != model.fingerprint):
        raise CannotTransfer(f"start: {owner} has no state {exported.start} of this model: import it first")
    if Session.objects.of(owner, key):
        raise CannotTransfer(f"there is a session {key} already")
    try:
        with transaction.atomic():
            for turn in exported.turns:
                new = NewTurn(
                    prompt=turn.prompt_ids,
                    reply=turn.reply_ids,
                    sampling=turn.sampling,
                    finish_reason=turn.finish_reason,
                    duration=turn.duration,
                )
                commit_turn(read_head(owner, key, model, start), new)
    except SessionChanged as error:
        raise CannotTransfer(f"there is a session {key} already") from error
    made = Session.objects.of(owner, key)
    assert made is not None, "it was made just now"
    return made


def write_snapshot(file: IO[bytes], session: Session, model: ModelInfo) -> None:
    """The state after the last turn that was saved, as a `.pth`. Raises CannotTransfer.

    `model` is the session's, whose sizes only an engine that has it loaded knows.
    """
    data = SnapshotData.objects.filter(snapshot__session=session).select_related("snapshot").first()
    if data is None:
        raise CannotTransfer(f"{session} has no saved state yet")
    blob, snapshot = bytes(data.blob), data.snapshot
    if checksum(blob) != snapshot.checksum:
        raise CannotTransfer(f"the saved state of {session} is damaged")
    write_state(
        file,
        shape_of(model),
        dtypes=snapshot.dtype.split("/"),
        data=blob,
        pending=unpack_ids(bytes(snapshot.pending_ids)),
        model_fingerprint=snapshot.model_fingerprint,
    )
