"""Requests that were paused, kept in Redis until they are resumed or forgotten.

What is kept are token ids: the prompt, and what was generated behind it. The engine that resumes
computes the state anew, so a paused request outlives engines and needs no memory of theirs.

A request's name is its owner's and its id, which a client may choose: one caller's request never takes
the place of another's. Owners' names hold no colon.
"""

import time
from typing import Any

import msgspec
from redis import asyncio as aioredis

from inference.bus import keys
from inference.bus.messages import RunningRequest


class PausedRequest(msgspec.Struct, kw_only=True):
    about: RunningRequest
    note: msgspec.Raw  # what the submitter noted with the call, in msgpack
    generated: dict[int, list[int]]  # the rows that had not ended, by index: their tokens so far


async def keep(connection: aioredis.Redis, about: RunningRequest, note: Any, generated: dict[int, list[int]]) -> None:
    """Keep it under its name, in place of an older one with the same."""
    if not generated:
        return  # its last row ended just before
    record = PausedRequest(about=about, note=msgspec.Raw(msgspec.msgpack.encode(note)), generated=generated)
    name = f"{about.owner}:{about.id}"
    pipeline = connection.pipeline(transaction=True)
    fields = {"about": msgspec.msgpack.encode(about), "record": msgspec.msgpack.encode(record)}
    pipeline.hset(keys.paused(name), mapping=fields)
    pipeline.expire(keys.paused(name), keys.PAUSED_TTL_SECONDS)
    pipeline.zadd(keys.PAUSED, {name: time.time() + keys.PAUSED_TTL_SECONDS})
    await pipeline.execute()


async def take(connection: aioredis.Redis, request_id: str, owner: str | None = None) -> PausedRequest | None:
    """Take a paused request of `owner` out, or anyone's without one; of several that try, one gets it."""
    names = [name for name in await _names(connection, owner) if name.partition(":")[2] == request_id]
    if not names:
        return None
    pipeline = connection.pipeline(transaction=True)
    pipeline.hget(keys.paused(names[-1]), "record")
    pipeline.delete(keys.paused(names[-1]))
    pipeline.zrem(keys.PAUSED, names[-1])
    record, *_ = await pipeline.execute()
    return msgspec.msgpack.decode(record, type=PausedRequest) if record else None


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
