"""The lease that makes writers of a session take turns, on a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import redis
from redis import asyncio as aioredis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError

from sessions import lease
from sessions.lease import Busy, Lease
from tests.bus.conftest import busy

NAME = "lease"


@pytest.fixture
def connection(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connection:
        connection.delete(NAME)
        yield connection


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[aioredis.Redis]:
    pool = aioredis.BlockingConnectionPool.from_url(redis_url, max_connections=1, retry=Retry(NoBackoff(), 1))
    async with aioredis.Redis(connection_pool=pool) as client:
        yield client
    await pool.disconnect()


async def test_one_holds_it_and_the_next_gets_it_when_it_is_given_back(client, connection):
    held = await Lease.take(client, NAME, 0.0)
    with pytest.raises(Busy):
        await Lease.take(client, NAME, 0.0)
    waiting = asyncio.create_task(Lease.take(client, NAME, 20.0))
    await held.release()
    await held.release()
    await (await waiting).release()
    assert not connection.exists(NAME)


async def test_a_redis_that_came_back_empty_is_told_of_it_again(client, connection, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    held = await Lease.take(client, NAME, 0.0)
    connection.delete(NAME)
    async with asyncio.timeout(20):
        while not connection.exists(NAME):
            await asyncio.sleep(0.01)
    await held.release()
    assert not connection.exists(NAME)


async def test_what_was_given_back_is_not_renewed_whenever_that_was(client, connection, monkeypatch):
    """A cancellation that comes while a command is being sent can get lost, so renewing must not end by one."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.0)
    for turns in range(40):
        held = await Lease.take(client, NAME, 0.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await held.release()
        await client.ping()  # behind whatever was under way on the only connection
        assert not connection.exists(NAME), f"after {turns} turns of the loop"


async def test_an_answer_that_gets_lost_is_no_refusal(client, connection, monkeypatch):
    original, lost = AbstractConnection.read_response, []

    async def read_response(self, *args, **options):
        answer = await original(self, *args, **options)
        if connection.exists(NAME) and not lost:
            lost.append(answer)
            await self.disconnect(nowait=True)
            raise ConnectionError("lost")
        return answer

    monkeypatch.setattr(AbstractConnection, "read_response", read_response)
    held = await Lease.take(client, NAME, 0.0)
    assert lost
    await held.release()
    assert not connection.exists(NAME)


async def test_who_goes_before_the_answer_holds_nothing(redis_url, connection):
    async with aioredis.Redis.from_url(redis_url) as client:
        await client.ping()  # so that there is a connection
        with busy(connection):
            taking = asyncio.create_task(Lease.take(client, NAME, 0.0))
            for _ in range(20):  # turns of the loop, of which sending takes some
                await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
        assert not connection.exists(NAME)


async def test_it_is_given_back_though_its_holder_goes_meanwhile(client, connection):
    held = await Lease.take(client, NAME, 0.0)
    only = await client.connection_pool.get_connection()
    releasing = asyncio.create_task(held.release())
    for _ in range(20):  # turns of the loop, in which it begins to wait for a connection
        await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    await client.connection_pool.release(only)
    await held.release()
    assert not connection.exists(NAME)
