"""One writer per session: a lease in Redis, renewed while its holder lives.

It makes writers take turns; it does not protect the log, because a holder can stall past its end. What
fences a late writer off is the log's own head: a turn is committed only behind the history that it was
generated from (`sessions.store.commit_turn`).
"""

import asyncio
import logging
import secrets

from redis import asyncio as aioredis
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

LEASE_MILLISECONDS = 15_000  # a holder that was silent for this long has died
RENEW_SECONDS = 5.0
POLL_SECONDS = 0.05

# Renews a lease, also one that an emptied Redis has forgotten.
_RENEW = """
local holder = redis.call("get", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("set", KEYS[1], ARGV[1], "px", ARGV[2])
return 1
"""
_RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then redis.call("del", KEYS[1]) end
"""


class Busy(Exception):
    """Somebody else holds the lease."""


class Lease:
    """A lease that is held. `release` it in any case."""

    def __init__(self, connection: aioredis.Redis, name: str, token: str) -> None:
        self._redis = connection
        self._name = name
        self._token = token
        self._renewal = asyncio.create_task(self._renew())

    @classmethod
    async def take(cls, connection: aioredis.Redis, name: str, wait_seconds: float) -> "Lease":
        """Wait for the lease, for at most so long. Raises Busy, and RedisError."""
        token = secrets.token_hex(8)
        until = asyncio.get_running_loop().time() + wait_seconds
        while not await connection.set(name, token, nx=True, px=LEASE_MILLISECONDS):
            if asyncio.get_running_loop().time() >= until:
                raise Busy(name)
            await asyncio.sleep(POLL_SECONDS)
        return cls(connection, name, token)

    async def release(self) -> None:
        if not self._renewal.done():
            self._renewal.cancel()
            try:
                await self._redis.eval(_RELEASE, 1, self._name, self._token)
            except RedisError as error:  # it ends by itself
                log.warning("a session's lease could not be given back: %s", error)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if not await self._redis.eval(_RENEW, 1, self._name, self._token, LEASE_MILLISECONDS):
                    log.warning("a session's lease was lost: its turn will be refused if the session has moved on")
                    return
            except RedisError as error:
                log.warning("a session's lease could not be renewed: %s", error)
