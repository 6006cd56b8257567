"""The log of turns: every write to it.

Synchronous; callers in an event loop go through a thread. Histories are named as in `inference.history`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from inference.bus.messages import History, ModelInfo
from inference.history import extend, pack_ids, root, unpack_ids
from sessions.models import Conversation, InitialState, Session, Snapshot, Turn

RECENT_TURNS = 16  # of a session, whose states an engine may still hold beside the newest
BRANCH_ATTEMPTS = 20  # somebody may take the key of a branch while it is made


class SessionChanged(Exception):
    """Somebody else wrote to the session since it was read, or it is gone. Nothing was written."""


class WrongModel(Exception):
    """The session belongs to another model."""


class WrongStart(Exception):
    """The session began with another initial state, or is to begin with one that has gone."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a session stands: what its next turn comes behind. `session` is None before its first turn."""

    owner: str
    key: str
    model: ModelInfo
    session: int | None
    history: History
    start: int | None = None  # the primary key of the initial state, None for the zero state


@dataclass(slots=True, kw_only=True)
class NewTurn:
    prompt: list[int]
    reply: list[int]
    sampling: dict[str, Any]
    finish_reason: str
    duration: float  # seconds


# -- turns --------------------------------------------------------------------------------------


def read_head(owner: str, key: str, model: ModelInfo, start: InitialState | None = None) -> Head:
    """`start` is what a new session begins with. Raises WrongModel, and WrongStart if the session began otherwise."""
    session = Session.objects.of(owner, key)
    if session is None:
        return Head(owner, key, model, None, beginning(owner, model, start), start.pk if start else None)
    if session.model_fingerprint != model.fingerprint:
        raise WrongModel(f"session {key} belongs to the model {session.model}, not to {model.id}")
    if start and start.pk != session.start_id:
        raise WrongStart(f"state_id: session {key} did not begin with {start.key}")
    digest = bytes.fromhex(session.digest)
    history = History(digest=digest, tokens=session.token_count, session=session.pk, turn=session.turn_count)
    return Head(owner, key, model, session.pk, history, session.start_id)


def beginning(owner: str, model: ModelInfo, start: InitialState | None) -> History:
    """The empty history of an owner and a model, behind an initial state if there is one."""
    if start is None:
        return History(digest=root(model.fingerprint, owner))
    digest = root(model.fingerprint, owner, start.checksum)
    return History(digest=digest, start=start.pk, pending=unpack_ids(bytes(start.pending_ids)))


def commit_turn(head: Head, turn: NewTurn) -> History:
    """Append a turn to a session, which the first one makes. Returns the new history.

    The digest that the head was read with must still be the session's: a writer that lost its lease
    can be late, but it cannot fork the log. Raises SessionChanged, WrongStart when the initial state has gone, and
    DatabaseError.
    """
    try:
        return _commit_turn(head, turn)
    except DatabaseError:  # what got lost may be no more than the answer to the commit
        after, made = _after(head.history, turn), Session.objects.of(head.owner, head.key)
        if made is None or (made.digest, made.turn_count) != (after.digest.hex(), after.turn):
            raise
        after.session = made.pk
        return after


@transaction.atomic
def _commit_turn(head: Head, turn: NewTurn) -> History:
    after = _after(head.history, turn)
    if head.session is None:
        _hold_start(head)
        session = Session(
            owner=head.owner, key=head.key, model=head.model.id, start_id=head.start, **_standing(head, after)
        )
        try:
            with transaction.atomic():
                session.save(force_insert=True)
        except IntegrityError as error:
            raise SessionChanged(head.key) from error
        after.session = session.pk
    else:
        unchanged = Session.objects.present().filter(pk=head.session, digest=head.history.digest.hex())
        if not unchanged.update(**_standing(head, after), last_used=timezone.now()):
            raise SessionChanged(head.key)
    _add_turn(after, turn)
    return after


def commit_branch(head: Head, conversation: str, turn: NewTurn) -> tuple[History, int]:
    """Make a new session behind a head, which stays as it is. Returns its history and its number, from 1."""
    for attempt in range(BRANCH_ATTEMPTS):
        try:
            return _commit_branch(head, conversation, turn)
        except IntegrityError as error:
            if attempt == BRANCH_ATTEMPTS - 1:
                raise SessionChanged(conversation) from error
    raise AssertionError("the last attempt returned or raised")


@transaction.atomic
def _commit_branch(head: Head, conversation: str, turn: NewTurn) -> tuple[History, int]:
    after = _after(head.history, turn)
    if head.session is None:
        _hold_start(head)
    number = _next_branch(head.owner, conversation)
    parent = Session.objects.filter(pk=head.session)
    if head.session is not None and not parent.update(last_used=timezone.now()):
        raise SessionChanged(head.key)  # its log is gone
    session = Session.objects.create(
        owner=head.owner,
        key=branch_key(conversation, number),
        model=head.model.id,
        start_id=head.start,
        conversation=conversation,
        branch=number,
        parent_id=head.session,
        parent_turn=head.history.turn or None,
        **_standing(head, after),
    )
    after.session = session.pk
    _add_turn(after, turn)
    return after, number


def _hold_start(head: Head) -> None:
    """Keep the initial state until the end of the transaction. Raises WrongStart if it has gone."""
    if head.start and not list(InitialState.objects.select_for_update().filter(pk=head.start)):
        raise WrongStart("state_id: the state was deleted in the meantime")


def branch_key(conversation: str, number: int) -> str:
    return f"{conversation}:{number}"


def _next_branch(owner: str, conversation: str) -> int:
    """The next number of a conversation, which nobody else gets. Those whose keys are taken are passed over."""
    counter, _ = Conversation.objects.get_or_create(owner=owner, key=conversation)
    row = Conversation.objects.filter(pk=counter.pk)
    row.update(last_branch=F("last_branch") + 1, last_used=timezone.now())  # holds the others back until the end
    given = number = row.values_list("last_branch", flat=True).get()
    while Session.objects.of(owner, branch_key(conversation, number)):
        number += 1
    if number > given:
        row.update(last_branch=number)
    return number


def _after(history: History, turn: NewTurn) -> History:
    ids = turn.prompt + turn.reply
    return History(
        digest=extend(history.digest, ids),
        tokens=history.tokens + len(ids),
        session=history.session,
        turn=history.turn + 1,
    )


def _standing(head: Head, history: History) -> dict[str, Any]:
    return {
        "model_fingerprint": head.model.fingerprint,
        "digest": history.digest.hex(),
        "token_count": history.tokens,
        "turn_count": history.turn,
    }


def _add_turn(history: History, turn: NewTurn) -> None:
    Turn.objects.create(
        session_id=history.session,
        number=history.turn,
        prompt_ids=pack_ids(turn.prompt),
        reply_ids=pack_ids(turn.reply),
        sampling=turn.sampling,
        finish_reason=turn.finish_reason,
        digest=history.digest.hex(),
        duration=turn.duration,
    )


# -- deleting -----------------------------------------------------------------------------------


@transaction.atomic
def delete_sessions(sessions: Sequence[Session]) -> list[bytes]:
    """Delete sessions. Those with branches keep their turns, out of sight, until the last branch is gone.

    Returns the names of the states that nobody can ask for any more.
    """
    recent = Turn.objects.filter(session__in=sessions, number__gt=F("session__turn_count") - RECENT_TURNS)
    named = {session.digest for session in sessions} | set(recent.values_list("digest", flat=True))
    for session in sorted(sessions, key=lambda session: -session.pk):  # branches are younger than their parents
        _delete(session)
    kept = set(Session.objects.present().filter(digest__in=named).values_list("digest", flat=True))
    return [bytes.fromhex(digest) for digest in named - kept]


def _delete(session: Session) -> None:
    """Delete a session, and those of its ancestors that had stayed for its sake alone."""
    if session.branches.exists():
        Snapshot.objects.filter(session=session).delete()
        Session.objects.filter(pk=session.pk, deleted_at=None).update(deleted_at=timezone.now())
        return
    parent = session.parent
    session.delete()
    while parent is not None and parent.deleted_at is not None and not parent.branches.exists():
        session, parent = parent, parent.parent
        session.delete()
