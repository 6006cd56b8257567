"""Ways to a state: from what is at hand or a snapshot, through the log; and the writing of snapshots.

Synchronous, for the threads of an engine process.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from django.db import transaction
from django.utils import timezone

from inference.bus.messages import History
from inference.history import extend, pack_ids, root, unpack_ids
from sessions.models import LAYOUT, InitialState, InitialStateData, Session, Snapshot, SnapshotData

TURNS_AT_ONCE = 50
INITIAL_DTYPE = "float32/float32"  # as InitialStateData has them


class BrokenLog(Exception):
    """The turns do not lead to the history that was asked for."""


@dataclass(slots=True, kw_only=True)
class StoredState:
    """A state as bytes."""

    digest: bytes
    tokens: int
    pending: list[int]
    dtype: str
    data: bytes


@dataclass(slots=True)
class Route:
    """How to reach a history: from the state named `base`, or from `stored`, or from nothing."""

    base: bytes = b""
    stored: StoredState | None = None
    tokens: list[int] = field(default_factory=list)


def find_route(history: History, cached: Collection[bytes], *, fingerprint: str, dtype: str) -> Route:
    """The shortest way to a history, backward from its end to a cached state, a snapshot, or the beginning.

    A snapshot that cannot be used (another dtype or layout, bytes that are not what was written) is
    passed over: the log leads to the same state. Raises BrokenLog.
    """
    if not history.tokens:
        return Route(stored=_read_start(history.start))
    turns: list[tuple[bytes, list[int]]] = []
    begin, start = b"", None
    for session, last in _lineage(history):
        start = session.start_id
        begin = root(fingerprint, session.owner, session.start.checksum if session.start else "")
        stored = _usable_snapshot(session, last, fingerprint=fingerprint, dtype=dtype)
        query = session.turns.filter(number__lte=last, number__gt=session.parent_turn or 0).order_by("-number")
        for digest, prompt, reply in query.values_list("digest", "prompt_ids", "reply_ids").iterator(TURNS_AT_ONCE):
            name = bytes.fromhex(digest)
            if name in cached:
                return _checked(Route(base=name), name, turns, history)
            if stored and stored.digest == digest and (state := _read(stored)):
                return _checked(Route(stored=state), name, turns, history)
            turns.append((name, unpack_ids(bytes(prompt)) + unpack_ids(bytes(reply))))
    return _checked(Route(stored=_read_start(start) if start else None), begin, turns, history)


def _lineage(history: History) -> Iterator[tuple[Session, int]]:
    """The session and its ancestors, each with the last of its turns that belongs to the history."""
    pk, last = history.session, history.turn
    while pk is not None:
        session = Session.objects.filter(pk=pk).select_related("start").first()
        if session is None:
            raise BrokenLog("the session is gone")
        yield session, last
        pk, last = session.parent_id, session.parent_turn or 0


def _usable_snapshot(session: Session, last: int, *, fingerprint: str, dtype: str) -> Snapshot | None:
    fitting = Snapshot.objects.filter(model_fingerprint=fingerprint, dtype=dtype, layout=LAYOUT)
    return fitting.filter(session=session, turn__lte=last).first()


def _read(snapshot: Snapshot) -> StoredState | None:
    """None when the bytes are missing or damaged."""
    blob = SnapshotData.objects.filter(snapshot=snapshot).values_list("blob", flat=True).first()
    data = bytes(blob) if blob is not None else b""
    if checksum(data) != snapshot.checksum:
        return None
    return StoredState(
        digest=bytes.fromhex(snapshot.digest),
        tokens=snapshot.token_count,
        pending=unpack_ids(bytes(snapshot.pending_ids)),
        dtype=snapshot.dtype,
        data=data,
    )


def _read_start(pk: int) -> StoredState:
    """An initial state. Raises BrokenLog."""
    start = InitialState.objects.filter(pk=pk).first()
    blob = InitialStateData.objects.filter(state=pk).values_list("blob", flat=True).first()
    if start is None or blob is None:
        raise BrokenLog("the initial state is gone")
    data, pending = bytes(blob), bytes(start.pending_ids)
    if checksum(data + pending) != start.checksum:
        raise BrokenLog("the initial state is damaged")
    return StoredState(digest=b"", tokens=0, pending=unpack_ids(pending), dtype=INITIAL_DTYPE, data=data)


def _checked(route: Route, name: bytes, turns: list[tuple[bytes, list[int]]], history: History) -> Route:
    """The route, its tokens filled in from `turns` (the newest first). Raises BrokenLog."""
    for digest, ids in reversed(turns):
        name = extend(name, ids)
        if name != digest:
            raise BrokenLog("a turn of the log is damaged")
        route.tokens += ids
    if name != history.digest:
        raise BrokenLog("the log does not lead to this history")
    return route


def store_snapshots(states: Sequence[StoredState], *, fingerprint: str) -> set[bytes]:
    """Store the states that are the heads of sessions, in one transaction. Returns the names of those.

    A state is that of every session with its history. Older snapshots are replaced.
    """
    by_name = {state.digest.hex(): state for state in states}
    stored: set[bytes] = set()
    with transaction.atomic():
        for session in Session.objects.present().filter(digest__in=by_name, model_fingerprint=fingerprint):
            state = by_name[session.digest]
            if state.tokens == session.token_count:
                _replace(session, state)
                stored.add(state.digest)
    return stored


def _replace(session: Session, state: StoredState) -> None:
    values = {
        "turn": session.turn_count,
        "digest": session.digest,
        "token_count": state.tokens,
        "pending_ids": pack_ids(state.pending),
        "model_fingerprint": session.model_fingerprint,
        "dtype": state.dtype,
        "layout": LAYOUT,
        "checksum": checksum(state.data),
        "size": len(state.data),
        "created": timezone.now(),
    }
    snapshot, _ = Snapshot.objects.update_or_create(session=session, defaults=values)
    SnapshotData.objects.update_or_create(snapshot=snapshot, defaults={"blob": state.data})


def checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
