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

# Takes a lease that nobody else holds, or renews it, also one that an emptied Redis has forgotten. Asked again,
# because its answer got lost, it gives the same one.
_HOLD = """
local holder = redis.call("get", KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call("set", KEYS[1], ARGV[1], "px", ARGV[2])
return 1
"""
_RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then redis.call("del", KEYS[1]) end
"""


_keepers: set[asyncio.Task[None]] = set()


class Busy(Exception):
    """Somebody else holds the lease."""


class Lease:
    """A lease that is held. `release` it in any case."""

    def __init__(self, connection: aioredis.Redis, name: str) -> None:
        """To be had from `take` alone."""
        self._redis = connection
        self._name = name
        self._token = secrets.token_hex(8)
        self._over = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def take(cls, connection: aioredis.Redis, name: str, wait_seconds: float) -> "Lease":
        """Wait for the lease, for at most so long. Raises Busy, and RedisError."""
        lease, loop = cls(connection, name), asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        try:
            while not (held := await lease._hold()) and loop.time() < until:
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:  # the client has gone, or the answer got lost: Redis may have given the lease
            await lease.release()
            raise
        if not held:
            raise Busy(name)
        lease._keep()
        return lease

    async def release(self) -> None:
        """May be called again. Goes on where the caller's own task is being cancelled."""
        self._over.set()
        await asyncio.wait([self._keep()])

    def _keep(self) -> asyncio.Task[None]:
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._renew_until_over())
            _keepers.add(self._keeper)
            self._keeper.add_done_callback(_keepers.discard)
        return self._keeper

    async def _renew_until_over(self) -> None:
        """Renew the lease, then give it back. Never cancelled: within redis-py a cancellation can get lost."""
        while not await self._is_over():
            try:
                if not await self._hold():
                    log.warning("a session's lease was lost: its turn will be refused if the session has moved on")
                    return
            except RedisError as error:
                log.warning("a session's lease could not be renewed: %s", error)
        try:
            await self._redis.eval(_RELEASE, 1, self._name, self._token)
        except RedisError as error:  # it ends by itself
            log.warning("a session's lease could not be given back: %s", error)

    async def _is_over(self) -> bool:
        """Waits for that until the lease is to be renewed."""
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                return await self._over.wait()
        except TimeoutError:
            return False

    async def _hold(self) -> bool:
        return bool(await self._redis.eval(_HOLD, 1, self._name, self._token, LEASE_MILLISECONDS))
