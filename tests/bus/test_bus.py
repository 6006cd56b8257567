"""Rows over a real Redis to a real worker process (on the counting model) and back.

The counting model's output shows any token that was lost, doubled or given to another row.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest
import redis

from inference.bus import keys
from inference.bus.call import Call, NoEngine, QueueFull, RowFailed
from inference.bus.client import BusClient
from inference.bus.messages import Generate
from inference.bus.scripts import Scripts
from inference.bus.status import read_engines, read_queues


async def until_async(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


def request(first: int, max_tokens: int = 20, **more) -> Generate:
    return Generate(web="", row=0, model="counting", prompt=[first], max_tokens=max_tokens, **more)


async def collect(call: Call) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in call.requests]
    while not call.done:
        for index, output in await call.take():
            tokens[index] += output.tokens
    return tokens


async def some(call: Call, count: int) -> list[list[int]]:
    """Read until every row has `count` tokens; returns what came."""
    tokens: list[list[int]] = [[] for _ in call.requests]
    while min(map(len, tokens)) < count:
        for index, output in await call.take():
            tokens[index] += output.tokens
    return tokens


def counted(first: int, count: int) -> list[int]:
    return [first + 1 + i for i in range(count)]


def idle(connection: redis.Redis) -> bool:
    engines = read_engines(connection)
    return bool(engines) and all(engine.running == engine.waiting == 0 for engine in engines)


async def test_many_calls_at_once_are_not_mixed_up(start_worker, client, connection):
    start_worker(slots=16, step_seconds=0)
    calls = [await client.submit([request(1000 * i + 100 * j) for j in range(3)]) for i in range(40)]
    answers = await asyncio.gather(*map(collect, calls))
    assert answers == [[counted(1000 * i + 100 * j, 20) for j in range(3)] for i in range(40)]
    assert client.active_rows == 0
    await until_async(lambda: connection.xlen(keys.requests("counting")) == 0)
    assert read_queues(connection, ["counting"])[0].interactive == 0


async def test_offline_rows_wait_for_interactive_ones(start_worker, client, connection):
    start_worker(slots=1)
    first = await client.submit([request(0, max_tokens=50_000)])
    await some(first, 1)
    offline = await client.submit([request(500, max_tokens=3)], offline=True)
    interactive = await client.submit([request(100 * i, max_tokens=3) for i in range(5)])
    client.cancel(first)  # only now there is room
    done: list[str] = []

    async def finish(name: str, call: Call) -> None:
        await collect(call)
        done.append(name)

    await asyncio.gather(finish("offline", offline), finish("interactive", interactive))
    assert done == ["interactive", "offline"]


async def test_gathering_merges_tokens_but_not_the_first_and_the_last(start_worker, client):
    start_worker()
    call = await client.submit([request(0, max_tokens=21)])
    sizes = []
    while not call.done:
        sizes.append(sum(len(output.tokens) for _, output in await call.take(gather=10, patience=30.0)))
    assert sizes[0] == 1, "the first token is handed on at once"
    assert sizes[1] >= 10 and sum(sizes) == 21


async def test_a_cancelled_call_frees_its_slots(start_worker, client, connection):
    start_worker(slots=4)
    call = await client.submit([request(i, max_tokens=100_000) for i in range(6)])
    await call.take()
    client.cancel(call)
    await until_async(lambda: connection.xlen(keys.requests("counting")) == 0)
    again = await client.submit([request(7)])
    assert await collect(again) == [counted(7, 20)]


async def test_one_row_of_a_call_can_be_cancelled(start_worker, client):
    start_worker()
    call = await client.submit([request(0, max_tokens=100_000), request(100, max_tokens=10)])
    await call.take()
    client.cancel(call, 0)
    tokens: list[int] = []
    while not call.done:
        tokens += [token for index, output in await call.take() if index == 1 for token in output.tokens]
    assert tokens[-1] == 110


async def test_without_an_engine_nothing_is_queued(connection, client):
    with pytest.raises(NoEngine, match="no engine is running"):
        await client.submit([request(1)])
    assert connection.xlen(keys.requests("counting")) == 0


async def test_a_full_queue_refuses(start_worker, redis_url, connection):
    start_worker(slots=1)
    client = BusClient(redis_url, max_queue=5, grace_seconds=20)
    try:
        running = await client.submit([request(0, max_tokens=100_000)])
        await running.take()
        await client.submit([request(i, max_tokens=2) for i in range(4)])
        with pytest.raises(QueueFull, match="the queue is full: 5 rows are waiting"):
            await client.submit([request(9), request(10)])
    finally:
        await client.close()


async def test_rows_that_come_at_once_do_not_overfill_the_queue(start_worker, redis_url, connection):
    start_worker(slots=1)
    client = BusClient(redis_url, max_queue=5, grace_seconds=20)
    try:
        running = await client.submit([request(0, max_tokens=100_000)])
        await running.take()
        submitted = [client.submit([request(i, max_tokens=2), request(i, max_tokens=2)]) for i in range(8)]
        answers = await asyncio.gather(*submitted, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == ["Call"] * 2 + ["QueueFull"] * 6
        assert connection.xlen(keys.requests("counting")) == 5
        assert client.active_rows == 5
        with pytest.raises(QueueFull):
            await client.submit([request(i) for i in range(6)])
    finally:
        await client.close()


async def test_a_submission_whose_answer_was_lost_is_made_once(client, connection):
    stream = keys.requests("counting")
    scripts = Scripts(client.redis)
    made = await scripts.submit(stream, "name", [b"one", b"two"], max_waiting=3)
    assert await scripts.submit(stream, "name", [b"one", b"two"], max_waiting=3) == made
    assert [fields for _, fields in connection.xrange(stream)] == [{b"m": b"one"}, {b"m": b"two"}]
    assert await scripts.exist([(stream, made[0]), (stream, b"1-1"), (stream, b""), ("none", made[1])]) == [
        True,
        False,
        False,
        False,
    ]


async def test_what_cannot_be_read_is_passed_over(start_worker, client, connection):
    """Requests, notices, heartbeats and replies of another version, on all the ways that a row takes."""
    start_worker(slots=2)
    stream = keys.requests("counting")
    connection.xadd(stream, {"m": b"nonsense"})
    connection.xadd(stream, {"other": b"nonsense"})
    connection.xadd(keys.CANCEL, {"m": b"nonsense"})
    connection.set(keys.engine("other"), b"nonsense", ex=60)
    connection.sadd(keys.ENGINES, "other")
    call = await client.submit([request(0, max_tokens=100_000)])
    await call.take()
    connection.xadd(keys.replies(client.web), {"m": b"nonsense"})
    connection.publish(keys.ORDERS, b"nonsense")
    await some(call, 50)
    assert len(await client.give_order("list")) == 1
    client.cancel(call)
    await until_async(lambda: connection.xlen(stream) == 0)
    assert await collect(await client.submit([request(7)])) == [counted(7, 20)]


async def test_a_killed_engines_rows_go_on_in_the_next_one(start_worker, client, connection):
    worker = start_worker(slots=4)
    call = await client.submit([request(1000 * i, max_tokens=800) for i in range(6)])
    before = await some_of(call, 50)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    start_worker(slots=8, step_seconds=0)
    after = await collect(call)
    assert [a + b for a, b in zip(before, after, strict=True)] == [counted(1000 * i, 800) for i in range(6)]
    await until_async(lambda: idle(connection))


async def some_of(call: Call, count: int) -> list[list[int]]:
    """Read until any row has `count` tokens; returns what came."""
    tokens: list[list[int]] = [[] for _ in call.requests]
    while max(map(len, tokens)) < count:
        for index, output in await call.take():
            tokens[index] += output.tokens
    return tokens


async def test_another_live_engine_takes_over_a_dead_ones_rows(start_worker, client):
    workers = [start_worker(slots=4), start_worker(slots=4)]
    call = await client.submit([request(1000 * i, max_tokens=1500) for i in range(8)])
    before = await some_of(call, 20)
    workers[0].kill()
    after = await collect(call)
    assert [a + b for a, b in zip(before, after, strict=True)] == [counted(1000 * i, 1500) for i in range(8)]


async def test_a_stopped_engine_finishes_its_rows(start_worker, client, connection):
    worker = start_worker(slots=4)
    call = await client.submit([request(0, max_tokens=300)])
    before = await some(call, 5)
    worker.send_signal(signal.SIGTERM)
    after = await collect(call)
    assert before[0] + after[0] == counted(0, 300)
    assert worker.wait(timeout=20) == 0
    assert read_engines(connection) == []


async def test_an_emptied_redis_loses_no_token(start_worker, client, connection):
    start_worker(slots=2)
    call = await client.submit([request(1000 * i, max_tokens=1000) for i in range(4)])
    before = await some_of(call, 20)
    connection.flushall()
    after = await collect(call)
    assert [a + b for a, b in zip(before, after, strict=True)] == [counted(1000 * i, 1000) for i in range(4)]


async def test_when_no_engine_comes_back_the_call_fails_with_the_reason(start_worker, redis_url):
    worker = start_worker()
    client = BusClient(redis_url, max_queue=10, grace_seconds=1)
    try:
        call = await client.submit([request(0, max_tokens=100_000)])
        await call.take()
        worker.kill()
        with pytest.raises(NoEngine, match="the engine was lost and has not come back"):
            await collect(call)
        assert client.active_rows == 0
    finally:
        await client.close()


async def test_the_rows_of_a_dead_web_process_are_dropped(start_worker, redis_url, connection):
    start_worker(slots=4)
    client = BusClient(redis_url, max_queue=10, grace_seconds=20)
    call = await client.submit([request(0, max_tokens=10_000_000)])
    await call.take()
    await client.close()  # as a killed process: no cancellation is sent
    connection.delete(keys.web(client.web))
    await until_async(lambda: idle(connection))


async def test_a_passed_deadline_fails_the_call(start_worker, client):
    start_worker()
    call = await client.submit([request(0, max_tokens=10_000_000, deadline=time.time() + 0.5)])
    with pytest.raises(RowFailed, match="deadline has passed"):
        await collect(call)
