"""Which engine has the state of a session in its memory: the session's next turn goes to that one while it lives.

Every engine reads a stream of its own before those that all share. A web process that committed a turn
notes the engine that ran it as the session's home, and a later turn is sent to the home's own stream. It is a
hint: any engine can serve any session, from the database. Where the home is gone, draining, or has more
rows waiting than it can run, the turn goes to the shared stream; and a row in the stream of an engine that has
died since is submitted again to the shared one.
"""

import logging
from collections.abc import Sequence

from redis import asyncio as aioredis
from redis.exceptions import RedisError

from inference.bus import keys
from inference.bus.messages import EngineStatus, Generate

log = logging.getLogger(__name__)


async def note_home(connection: aioredis.Redis, session: int, engine: str) -> None:
    """Note that `engine` has the newest state of a session. Never raises: it is a hint."""
    try:
        await connection.set(keys.home(session), engine, ex=keys.HOME_TTL_SECONDS)
    except RedisError as error:
        log.info("the home of a session was not noted: %s", error)


async def home_stream(connection: aioredis.Redis, request: Generate, engines: Sequence[EngineStatus]) -> str:
    """The stream of the engine to which a session's turn should go; "" if any will do. Raises RedisError."""
    session = request.history.session if request.history else 0
    if not session:
        return ""
    name = await connection.get(keys.home(session))
    for engine in engines:
        if name and engine.engine == name.decode() and _takes(engine, request.model):
            return keys.own(engine.engine)
    return ""


def _takes(engine: EngineStatus, model: str) -> bool:
    serves = engine.state == "ready" and engine.model is not None and engine.model.id == model
    return serves and engine.waiting <= engine.slots


def is_stranded(stream: str, begun: bool, engines: Sequence[EngineStatus]) -> bool:
    """Whether a row lies in the stream of an engine that will not run it. `begun`: it has got tokens."""
    if not keys.is_own(stream):
        return False
    status = next((engine for engine in engines if keys.own(engine.engine) == stream), None)
    return status is None or (status.state == "draining" and not begun)


def shared_stream(stream: str, model: str) -> str:
    """Where a row goes that is submitted again."""
    return keys.requests(model) if keys.is_own(stream) else stream
