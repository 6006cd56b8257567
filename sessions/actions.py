"""What operators and the schedule do with sessions. What a client does is in `sessions.store`."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import redis
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.bus import keys
from inference.bus.call import NoEngine
from inference.bus.messages import EngineStatus, History, ModelInfo, WarmStates
from inference.bus.status import read_engines
from sessions.models import KEY_LENGTH, Conversation, Session
from sessions.store import delete_sessions

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0  # a page must not wait for a Redis that is away
DELETED_AT_ONCE = 500


class CannotFork(Exception):
    """The new key is too long or taken."""


def fork(session: Session, key: str) -> Session:
    """A new session with the same history. Raises CannotFork."""
    if len(key) > KEY_LENGTH:
        raise CannotFork(f"the key would be longer than {KEY_LENGTH} characters")
    try:
        with transaction.atomic():
            return Session.objects.create(
                key=key,
                owner=session.owner,
                model=session.model,
                model_fingerprint=session.model_fingerprint,
                start=session.start,
                digest=session.digest,
                token_count=session.token_count,
                turn_count=session.turn_count,
                parent=session,
                parent_turn=session.turn_count,
            )
    except IntegrityError as error:
        raise CannotFork(f"there is a session {key} already") from error


def delete(sessions: Sequence[Session]) -> None:
    """Delete sessions, and their states from the engines."""
    evict(delete_sessions(sessions))


def evict(names: Sequence[bytes]) -> None:
    """Have the engines drop states. Those not in the database yet will be rebuilt when they are wanted."""
    if not names:
        return
    try:
        with _connect() as connection:
            message = msgspec.msgpack.encode(list(names))
            connection.xadd(keys.CANCEL, {"forget": message}, maxlen=keys.CANCEL_STREAM_LENGTH)
    except redis.RedisError as error:
        log.warning("the engines keep states that nobody wants for now: %s", error)


def warm(sessions: Sequence[Session]) -> int:
    """Have an engine load saved states to its memory. Returns how many: those whose newest state is saved.

    Raises NoEngine when none has their model loaded.
    """
    saved = [session for session in sessions if _is_saved(session)]
    engines = [engine for engine in live_engines() if engine.state == "ready" and engine.model]
    for fingerprint in {session.model_fingerprint for session in saved}:
        chosen = [session for session in saved if session.model_fingerprint == fingerprint]
        engine = next((e for e in engines if e.model and e.model.fingerprint == fingerprint), None)
        if engine is None:
            raise NoEngine(f"no engine has the model {chosen[0].model} loaded")
        histories = [
            History(
                digest=bytes.fromhex(session.digest),
                tokens=session.token_count,
                session=session.pk,
                turn=session.turn_count,
            )
            for session in chosen
        ]
        with _connect() as connection:
            message = msgspec.msgpack.encode(WarmStates(engine.engine, histories))
            connection.xadd(keys.CANCEL, {"warm": message}, maxlen=keys.CANCEL_STREAM_LENGTH)
            for session in chosen:
                connection.set(keys.home(session.pk), engine.engine, ex=keys.HOME_TTL_SECONDS)
    return len(saved)


def _is_saved(session: Session) -> bool:
    snapshot = getattr(session, "snapshot", None)  # a session without one has no such attribute
    return snapshot is not None and snapshot.digest == session.digest


def expire(days: float) -> int:
    """Delete the sessions that were not used for so many days; 0 deletes none. Returns how many.

    The counters of conversations without any branch go with them.
    """
    if not days:
        return 0
    before = timezone.now() - timedelta(days=days)
    old = Session.objects.present().filter(last_used__lt=before).order_by("pk")
    count = 0
    while deleted := _delete_some(lambda: list(old.select_for_update(of=("self",))[:DELETED_AT_ONCE])):
        count += deleted
    branches = Session.objects.filter(owner=OuterRef("owner"), conversation=OuterRef("key"), branch__isnull=False)
    Conversation.objects.filter(~Exists(branches), last_used__lt=before).delete()
    return count


def levels() -> dict[str, str]:
    """ "L1" or "L2" for the name, in hexadecimal, of every state in an engine's memory. Empty without Redis."""
    engines = live_engines()
    on_host = {name.hex(): "L2" for engine in engines for name in engine.host_states}
    return on_host | {name.hex(): "L1" for engine in engines for name in engine.device_states}


def shrink(most_bytes: int) -> int:
    """Delete the sessions unused for longest until the rest takes at most so much; 0 deletes none. Returns how many.

    What a session takes is its saved state and 4 bytes for each token of its history.
    """
    if not most_bytes:
        return 0
    sized = Session.objects.present().annotate(bytes=Coalesce("snapshot__size", 0) + 4 * F("token_count"))

    def excessive() -> list[Session]:
        oldest = list(sized.select_for_update(of=("self",)).order_by("last_used", "pk")[:DELETED_AT_ONCE])
        excess = (sized.aggregate(total=Sum("bytes"))["total"] or 0) - most_bytes
        chosen = []
        for session in oldest:
            if excess > 0:
                chosen.append(session)
                excess -= session.bytes
        return chosen

    count = 0
    while deleted := _delete_some(excessive):
        count += deleted
    return count


def _delete_some(choose: Callable[[], list[Session]]) -> int:
    """Delete the sessions that `choose` locks. Returns how many.

    In one transaction: a turn is committed before, and counts, or is refused behind it.
    """
    with transaction.atomic():
        chosen = choose()
        names = delete_sessions(chosen)
    evict(names)
    return len(chosen)


def live_engines() -> list[EngineStatus]:
    """What the engines say of themselves; none when Redis is away."""
    try:
        with _connect() as connection:
            return read_engines(connection)
    except redis.RedisError:
        return []


def loaded_model(fingerprint: str = "") -> ModelInfo | None:
    """The model of that fingerprint, if an engine has it loaded; without one, any that is loaded."""
    models = [engine.model for engine in live_engines() if engine.model]
    return next((model for model in models if fingerprint in ("", model.fingerprint)), None)


def _connect() -> redis.Redis:
    return redis.Redis.from_url(
        settings.RWKV.redis_url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
