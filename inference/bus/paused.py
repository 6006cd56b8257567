"""Requests that were paused, kept in Redis until they are resumed or forgotten.

What is kept are token ids: the prompt, and what was generated behind it. The engine that resumes
computes the state anew, so a paused request outlives engines and needs no memory of theirs.
"""

import time
from typing import Any

import msgspec
from redis import asyncio as aioredis

from inference.bus import keys
from inference.bus.messages import RunningRequest


class PausedRequest(msgspec.Struct, kw_only=True):
    note: msgspec.Raw  # what the submitter noted with the call, in msgpack
    generated: dict[int, list[int]]  # the rows that had not ended, by index: their tokens so far


async def keep(connection: aioredis.Redis, request: RunningRequest, note: Any, generated: dict[int, list[int]]) -> None:
    """Keep it under its id, in place of an older one with the same."""
    if not generated:
        return  # its last row ended just before
    record = PausedRequest(note=msgspec.Raw(msgspec.msgpack.encode(note)), generated=generated)
    key = keys.paused(request.id)
    pipeline = connection.pipeline(transaction=True)
    pipeline.hset(key, mapping={"about": msgspec.msgpack.encode(request), "record": msgspec.msgpack.encode(record)})
    pipeline.expire(key, keys.PAUSED_TTL_SECONDS)
    pipeline.zadd(keys.PAUSED, {request.id: time.time() + keys.PAUSED_TTL_SECONDS})
    await pipeline.execute()


async def take(connection: aioredis.Redis, request_id: str) -> PausedRequest | None:
    """Take a paused request out; of several that try, one gets it."""
    key = keys.paused(request_id)
    pipeline = connection.pipeline(transaction=True)
    pipeline.hget(key, "record")
    pipeline.delete(key)
    pipeline.zrem(keys.PAUSED, request_id)
    record, *_ = await pipeline.execute()
    return msgspec.msgpack.decode(record, type=PausedRequest) if record else None


async def summaries(connection: aioredis.Redis) -> list[RunningRequest]:
    """All that are paused, those paused first before the others."""
    await connection.zremrangebyscore(keys.PAUSED, "-inf", time.time())
    pipeline = connection.pipeline(transaction=False)
    for request_id in await connection.zrange(keys.PAUSED, 0, -1):
        pipeline.hget(keys.paused(request_id.decode()), "about")
    return [msgspec.msgpack.decode(about, type=RunningRequest) for about in await pipeline.execute() if about]
