"""What operators and the schedule do with sessions. What a client does is in `sessions.store`."""

import logging
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import redis
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.bus import keys
from inference.bus.status import read_engines
from sessions.models import KEY_LENGTH, Session
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


def expire(days: float) -> int:
    """Delete the sessions that were not used for so many days; 0 deletes none. Returns how many."""
    if not days:
        return 0
    old = Session.objects.present().filter(last_used__lt=timezone.now() - timedelta(days=days)).order_by("pk")
    count = 0
    while sessions := list(old[:DELETED_AT_ONCE]):
        delete(sessions)
        count += len(sessions)
    return count


def levels() -> dict[str, str]:
    """ "L1" or "L2" for the name, in hexadecimal, of every state in an engine's memory. Empty without Redis."""
    try:
        with _connect() as connection:
            engines = read_engines(connection)
    except redis.RedisError:
        return {}
    on_host = {name.hex(): "L2" for engine in engines for name in engine.host_states}
    return on_host | {name.hex(): "L1" for engine in engines for name in engine.device_states}


def _connect() -> redis.Redis:
    return redis.Redis.from_url(
        settings.RWKV.redis_url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
