"""Requests that were paused, kept in Redis until they are resumed or forgotten.

What is kept are token ids: the prompt, and what was generated behind it. The engine that resumes
computes the state anew, so a paused request outlives engines and needs no memory of theirs.

A request's name is its owner's and its id, which a client may choose: one caller's request never takes
the place of another's. Owners' names hold no colon.
"""

import secrets
import time
from typing import Any

import msgspec
from redis import asyncio as aioredis

from inference.bus import keys
from inference.bus.messages import RunningRequest

RESUMING_SECONDS = 10.0

# KEYS: the request, who resumes it. ARGV: a token of who asks, for how long it is his. Returns the record. Asked
# again, because its answer got lost, it gives it again.
_CLAIM = """
local holder = redis.call('GET', KEYS[2])
local record = redis.call('HGET', KEYS[1], 'record')
if not record or (holder and holder ~= ARGV[1]) then return false end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return record
"""
# KEYS: who resumes it. ARGV: the token.
_GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""
# KEYS: the request, the set of all. ARGV: its record, its name. By now it may be paused anew, with another record.
_FORGET = """
if redis.call('HGET', KEYS[1], 'record') == ARGV[1] then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], ARGV[2])
end
"""


class PausedRequest(msgspec.Struct, kw_only=True):
    about: RunningRequest
    note: msgspec.Raw  # what the submitter noted with the call, in msgpack
    generated: dict[int, list[int]]  # the rows that had not ended, by index: their tokens so far
    paused: float  # when, in Unix seconds


async def keep(connection: aioredis.Redis, about: RunningRequest, note: Any, generated: dict[int, list[int]]) -> None:
    """Keep it under its name, in place of an older one with the same."""
    if not generated:
        return  # its last row ended just before
    encoded = msgspec.Raw(msgspec.msgpack.encode(note))
    record = PausedRequest(about=about, note=encoded, generated=generated, paused=time.time())
    name = f"{about.owner}:{about.id}"
    pipeline = connection.pipeline(transaction=True)
    fields = {"about": msgspec.msgpack.encode(about), "record": msgspec.msgpack.encode(record)}
    pipeline.hset(keys.paused(name), mapping=fields)
    pipeline.expire(keys.paused(name), keys.PAUSED_TTL_SECONDS)
    pipeline.zadd(keys.PAUSED, {name: time.time() + keys.PAUSED_TTL_SECONDS})
    await pipeline.execute()


class Claim:
    """A paused request that nobody else may resume, for RESUMING_SECONDS: what dies meanwhile leaves it paused."""

    def __init__(self, connection: aioredis.Redis, name: str, token: str, record: bytes) -> None:
        self.request = msgspec.msgpack.decode(record, type=PausedRequest)
        self._redis = connection
        self._name = name
        self._token = token
        self._record = record

    async def forget(self) -> None:
        """It was resumed. Raises RedisError."""
        await self._redis.eval(_FORGET, 2, keys.paused(self._name), keys.PAUSED, self._record, self._name)
        await self.give_back()

    async def give_back(self) -> None:
        """It was not. Raises RedisError."""
        await self._redis.eval(_GIVE_BACK, 1, keys.resuming(self._name), self._token)


async def claim(connection: aioredis.Redis, request_id: str, owner: str | None = None) -> Claim | None:
    """Claim a paused request of `owner`, or anyone's without one; of several that try, one gets it."""
    names = [name for name in await _names(connection, owner) if name.partition(":")[2] == request_id]
    if not names:
        return None
    name, token = names[-1], secrets.token_hex(8)
    milliseconds = int(1000 * RESUMING_SECONDS)
    record = await connection.eval(_CLAIM, 2, keys.paused(name), keys.resuming(name), token, milliseconds)
    return Claim(connection, name, token, record) if record else None


async def summaries(connection: aioredis.Redis, owner: str | None = None) -> list[RunningRequest]:
    """The paused requests of `owner`, or everyone's without one; those paused first before the others."""
    pipeline = connection.pipeline(transaction=False)
    for name in await _names(connection, owner):
        pipeline.hget(keys.paused(name), "about")
    return [msgspec.msgpack.decode(about, type=RunningRequest) for about in await pipeline.execute() if about]


async def _names(connection: aioredis.Redis, owner: str | None) -> list[str]:
    await connection.zremrangebyscore(keys.PAUSED, "-inf", time.time())
    names = [name.decode() for name in await connection.zrange(keys.PAUSED, 0, -1)]
    return [name for name in names if owner in (None, name.partition(":")[0])]
