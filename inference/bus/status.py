"""What the engines say of themselves, for those who only look (admin, health checks, commands)."""

import logging
from dataclasses import dataclass

import msgspec
import redis

from inference.bus import keys
from inference.bus.messages import EngineStatus

log = logging.getLogger(__name__)

_decoder = msgspec.msgpack.Decoder(EngineStatus)


def decode_statuses(values: list[bytes | None]) -> list[EngineStatus]:
    """The statuses that are there (an expired heartbeat is None), oldest engine first.

    One that cannot be read, as of an engine of another version, is left out.
    """
    statuses = []
    for value in filter(None, values):
        try:
            statuses.append(_decoder.decode(value))
        except msgspec.MsgspecError as error:
            log.error("an engine's heartbeat cannot be read: %s", error)
    return sorted(statuses, key=lambda status: status.started)


def read_engines(connection: redis.Redis) -> list[EngineStatus]:
    """The live engines. Raises redis.ConnectionError when Redis is away."""
    names = sorted(name.decode() for name in connection.smembers(keys.ENGINES))
    return decode_statuses(connection.mget([keys.engine(name) for name in names])) if names else []


@dataclass(frozen=True, slots=True)
class QueueDepth:
    model: str
    interactive: int  # rows that no engine has taken yet
    offline: int


def read_queues(connection: redis.Redis, models: list[str]) -> list[QueueDepth]:
    """Rows waiting for each model. Rows that an engine has taken are in its own status."""
    return [
        QueueDepth(
            model,
            _untaken(connection, keys.requests(model)),
            _untaken(connection, keys.requests(model, offline=True)),
        )
        for model in models
    ]


def _untaken(connection: redis.Redis, stream: str) -> int:
    try:
        taken = connection.xpending(stream, keys.GROUP)["pending"]
    except redis.ResponseError:  # no engine has made the group yet
        taken = 0
    return max(0, connection.xlen(stream) - taken)
