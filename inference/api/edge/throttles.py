"""The limits of an API key: requests in a minute, and requests at one time.

Both are counted in Django's cache, so they hold over all web processes together.
"""

import asyncio
import random
from dataclasses import dataclass

from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from inference.api.edge.auth import Caller
from inference.api.edge.errors import RateLimited

# A process that dies takes its places with it. They are free again after this time; a request that
# runs for longer no longer counts.
PLACE_SECONDS = 900


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


@dataclass(frozen=True, slots=True)
class Place:
    """One of a caller's `max_concurrent` places, held while its request runs."""

    key: str

    def release(self) -> None:
        """Does not wait, so that it also works where the request's own task is being cancelled."""
        asyncio.get_running_loop().run_in_executor(None, cache.delete, self.key)


def take_place(caller: Caller | None) -> Place | None:
    """A place for one more request, None for callers without a limit. Raises RateLimited."""
    if caller is None or caller.max_concurrent is None:
        return None
    limit = caller.max_concurrent
    start = random.randrange(limit)  # so that the first try mostly finds a free one
    for number in range(start, start + limit):
        key = f"place:{caller.name}:{number % limit}"
        if cache.add(key, 1, timeout=PLACE_SECONDS):
            return Place(key)
    raise RateLimited(f"this key may run {limit} requests at one time", retry_after=1)
