"""The limits of an API key: requests in a minute, and requests at one time.

Both are counted in Redis, so they hold over all web processes together.
"""

import asyncio
import logging
import secrets
import time

from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from inference.api.edge.auth import Caller
from inference.api.edge.errors import RateLimited
from inference.api.rows.engines import bus
from inference.bus import keys

log = logging.getLogger(__name__)

# A process that dies takes its places with it. They are free again after this time; a request that
# runs for longer no longer counts.
PLACE_SECONDS = 900

# KEYS: the caller's places. ARGV: how many there may be, the token of the new one, now, when that is over. Asked again,
# because its answer got lost, it gives the same one.
_TAKE = """
redis.call("zremrangebyscore", KEYS[1], "-inf", ARGV[3])
if redis.call("zscore", KEYS[1], ARGV[2]) then return 1 end
if redis.call("zcard", KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call("zadd", KEYS[1], ARGV[4], ARGV[2])
redis.call("expireat", KEYS[1], math.ceil(tonumber(ARGV[4])))
return 1
"""

_releasing: set[asyncio.Task[None]] = set()


class KeyRateThrottle(SimpleRateThrottle):
    """`requests_per_minute` of the caller's key."""

    duration = 60

    def __init__(self) -> None:
        """Not the base class's: the rate is the caller's, not a setting."""

    def allow_request(self, request: Request, view: object) -> bool:
        caller: Caller | None = request.user
        if caller is None or caller.requests_per_minute is None:
            return True
        self.rate = "per key"
        self.num_requests = caller.requests_per_minute
        return super().allow_request(request, view)

    def get_cache_key(self, request: Request, view: object) -> str:
        return f"throttle:{request.user.name}"


class Place:
    """One of a caller's `max_concurrent` places, held while its request runs. `release` it in any case."""

    def __init__(self, key: str, token: str) -> None:
        self._key = key
        self._token = token
        self._releasing: asyncio.Task[None] | None = None

    async def release(self) -> None:
        """May be called again. Goes on where the request's own task is being cancelled."""
        if self._releasing is None:
            self._releasing = asyncio.create_task(self._give_back())
            _releasing.add(self._releasing)
            self._releasing.add_done_callback(_releasing.discard)
        await asyncio.shield(self._releasing)

    async def _give_back(self) -> None:
        try:
            await bus().redis.zrem(self._key, self._token)
        except RedisError as error:  # it ends by itself
            log.warning("a request's place could not be given back: %s", error)


async def take_place(caller: Caller | None) -> Place | None:
    """A place for one more request, None for callers without a limit. Raises RateLimited, and RedisError."""
    if caller is None or caller.max_concurrent is None:
        return None
    key, token, now = keys.places(caller.name), secrets.token_hex(8), time.time()
    place = Place(key, token)
    try:
        taken = await bus().redis.eval(_TAKE, 1, key, caller.max_concurrent, token, now, now + PLACE_SECONDS)
    except BaseException:  # the client has gone, or the answer got lost: Redis may have given the place
        await place.release()
        raise
    if taken:
        return place
    raise RateLimited(f"this key may run {caller.max_concurrent} requests at one time", retry_after=1)
