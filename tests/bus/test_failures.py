"""What goes wrong between an engine, Redis and a web process, at one line of the protocol each."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import msgspec
import pytest
import redis
from redis.exceptions import RedisError

from inference.bus import keys
from inference.bus.client import BusClient
from inference.bus.control import describe
from inference.bus.losses import LOST_POSITION
from inference.bus.messages import Cancel, EngineStatus, Generate, LoadModel, RowOutput, StepReply, TokenLogprobs
from inference.bus.server import EngineBus
from tests.bus.conftest import until
from tests.bus.test_bus import collect, counted, request, some, until_async

STREAM = keys.requests("counting")
STATUS = EngineStatus(engine="e", state="ready", host="", pid=0, started=0.0, updated=0.0)
USER = "user-of-a-test"


def row_of(number: int) -> Generate:
    return msgspec.structs.replace(request(number), web="w", row=number)


def add(connection: redis.Redis, number: int) -> bytes:
    return connection.xadd(STREAM, {"m": msgspec.msgpack.encode(row_of(number))})


def numbers(requests: list[Generate]) -> list[int]:
    return [request.row for request in requests]


@pytest.fixture
def allow(connection: redis.Redis) -> Iterator[Callable[..., None]]:
    """Sets what Redis allows who uses `restricted_url`."""
    connection.set(keys.web("w"), 1)
    connection.acl_log_reset()

    def allow(*rules: str) -> None:
        connection.execute_command("ACL", "SETUSER", USER, "on", ">pass", "~*", "&*", "+@all", *rules)

    allow()
    yield allow
    connection.acl_deluser(USER)


@pytest.fixture
def restricted_url(redis_url: str, allow: Callable[..., None]) -> str:
    scheme, _, rest = redis_url.partition("://")
    return f"{scheme}://{USER}:pass@{rest.rpartition('@')[2]}"


@pytest.fixture
def bus(restricted_url: str) -> Iterator[EngineBus]:
    bus = EngineBus(restricted_url, status=lambda: STATUS, name="e")
    bus.start()
    yield bus
    bus.stop()


def serve(bus: EngineBus, connection: redis.Redis) -> None:
    bus.serve("counting")
    until(lambda: connection.exists(keys.requests("counting", offline=True)))  # the last stream that it makes


def refused(connection: redis.Redis, command: str) -> bool:
    return any(entry["object"] == command and entry["username"] == USER for entry in connection.acl_log())


def taken(connection: redis.Redis) -> int:
    return connection.xpending(STREAM, keys.GROUP)["pending"]


def test_an_engine_reads_and_beats_again_after_its_groups_could_not_be_made(bus, connection, allow):
    serve(bus, connection)
    allow("-xgroup")
    connection.delete(STREAM)
    until(lambda: refused(connection, "xgroup|create"))
    allow()
    bus.set_capacity(1)
    add(connection, 7)
    assert numbers(arrived(bus, 1)) == [7]
    connection.delete(keys.engine("e"))
    until(lambda: connection.exists(keys.engine("e")))


def arrived(bus: EngineBus, count: int) -> list[Generate]:
    requests: list[Generate] = []

    def enough() -> bool:
        requests.extend(bus.arrivals())
        return len(requests) >= count

    until(enough)
    return requests


def test_requests_whose_delivery_got_lost_are_taken_again(bus, connection):
    """Redis has noted that this engine has them, and gives them to no other."""
    serve(bus, connection)
    bus.set_capacity(1)
    add(connection, 1)
    assert numbers(arrived(bus, 1)) == [1]
    bus.set_capacity(2)
    with connection.pipeline(transaction=True) as pipeline:  # before the engine, which waits for it, hears of it
        add(pipeline, 2)
        pipeline.xreadgroup(keys.GROUP, bus.name, {STREAM: ">"})
        pipeline.execute()
    requests: list[Generate] = []

    def is_taken_again() -> bool:
        """Between two reads nothing is noticed of a broken connection, and nothing is lost."""
        if any(client["user"] == USER and client["cmd"] == "xreadgroup" for client in connection.client_list()):
            connection.client_kill_filter(user=USER)
        requests.extend(bus.arrivals())
        return bool(requests)

    until(is_taken_again)
    assert numbers(requests) == [2]
    add(connection, 3)
    assert numbers(arrived(bus, 1)) == [3], "the row that it held all the time does not come twice"


def test_rows_that_came_and_were_not_seen_yet_count_as_taken(bus, connection):
    serve(bus, connection)
    bus.set_capacity(2)
    for number in range(9):
        add(connection, number)
    until(lambda: taken(connection) == 2)
    bus.set_capacity(3)  # of which it has two already
    until(lambda: taken(connection) > 2)
    assert taken(connection) == 3


def test_a_cancellation_is_heard_by_whoever_reads_its_request(bus, connection, allow):
    """An engine listens from some moment on: it must not read requests before that."""
    allow("-xrevrange")
    bus.serve("counting")
    bus.set_capacity(9)
    until(lambda: refused(connection, "xrevrange"))
    entry = add(connection, 1)
    connection.xdel(STREAM, entry)
    connection.xadd(keys.CANCEL, {"m": msgspec.msgpack.encode(Cancel("w", [1]))})
    add(connection, 2)
    allow()
    assert 1 not in numbers(arrived(bus, 1))


def test_orders_are_heard_from_the_first_heartbeat_on(bus, connection):
    """Whoever sees an engine may give it one, though it is not ready to read any."""
    until(lambda: connection.exists(keys.engine("e")))
    connection.xadd(keys.CANCEL, {"load": msgspec.msgpack.encode(LoadModel(["e"], "next"))})
    bus.serve("counting")
    until(lambda: bus.wanted_model == "next")


def test_news_that_came_before_the_wait_ends_it(bus, connection):
    bus.serve("counting")
    until(lambda: connection.exists(keys.own("e")))
    load = msgspec.msgpack.encode(LoadModel(["e"], "next"))

    def is_told() -> bool:
        connection.xadd(keys.CANCEL, {"load": load})
        return bus.wanted_model == "next"

    until(is_told)
    connection.xadd(keys.CANCEL, {"load": msgspec.msgpack.encode(LoadModel(["e"], "last"))})
    until(lambda: bus.wanted_model == "last")  # and nothing more comes
    bus.wait(3600.0)


def test_engines_that_died_before_they_served_are_forgotten(start_worker, connection):
    connection.sadd(keys.ENGINES, "died-while-loading")
    start_worker()
    until(lambda: not connection.sismember(keys.ENGINES, "died-while-loading"))


async def test_rows_that_come_while_an_engine_stops_are_not_kept_by_it(start_worker, client, connection):
    worker = start_worker(slots=64, step_seconds=0)
    first = await client.submit([request(0, 3)])
    await collect(first)
    worker.send_signal(signal.SIGTERM)
    number = 0
    while worker.poll() is None:
        number += 1
        add(connection, number)
        await asyncio.sleep(0.002)
    assert taken(connection) == 0


async def test_a_row_can_be_cancelled_between_its_loss_and_its_return(start_worker, client, connection):
    start_worker()
    call = await client.submit([request(0, 100_000), request(500, 1500)])
    await call.take()
    (lost, _other) = sorted(call.numbers)
    reply = StepReply("e", [RowOutput(lost, LOST_POSITION, finish="lost")])
    connection.xadd(keys.replies(client.web), {"m": msgspec.msgpack.encode(reply)})
    while client.active_rows == 2 and len(call.numbers) == 2:
        await asyncio.sleep(0)
    client.cancel(call, 0)
    assert call.running == {1}
    (ended,) = [tokens for tokens in await collect(call) if tokens and tokens[-1] == 2000]
    assert ended == counted(500, 1500)[-len(ended) :]
    await until_async(lambda: connection.xlen(STREAM) == 0)


async def test_more_rows_than_one_look_takes_are_found_and_come_back(start_worker, client, connection):
    start_worker(slots=1, step_seconds=0)
    first = await client.submit([request(0, 3000)])
    waiting = await client.submit([request(row, 1) for row in range(600)])
    await first.take()
    connection.delete(STREAM)
    assert await collect(waiting) == [counted(row, 1) for row in range(600)]


async def test_a_request_goes_on_if_it_cannot_be_kept_when_it_is_paused(start_worker, restricted_url, allow):
    start_worker()
    client = BusClient(restricted_url, max_queue=1000, grace_seconds=20)
    try:
        call = await client.submit([request(0, 300), request(1000, 100_000)], note="a note")
        begun = await some(call, 1)
        allow("-hset")
        pausing = asyncio.create_task(client.pause(call, describe(call)))
        while client.active_rows:
            await asyncio.sleep(0)
        client.cancel(call, 1)
        with pytest.raises(RedisError):
            await pausing
        assert await client.paused() == []
        rest = await collect(call)
        assert begun[0] + rest[0] == counted(0, 300)
        assert client.active_rows == 0
    finally:
        await client.close()


async def test_connections_that_broke_while_nobody_used_them_fail_no_request(start_worker, client, connection):
    start_worker()
    assert await collect(await client.submit([request(0, 3)])) == [counted(0, 3)]
    connection.client_kill_filter(_type="normal", skipme=True)
    assert await collect(await client.submit([request(0, 3)])) == [counted(0, 3)]


async def test_a_request_that_cannot_be_sent_leaves_no_row(start_worker, client):
    start_worker()
    with pytest.raises(OverflowError):
        await client.submit([request(0, prompt_logprobs_from=2**70)])
    assert client.active_rows == 0


async def test_a_request_goes_on_if_it_cannot_be_written_down_when_it_is_paused(start_worker, client):
    start_worker()
    call = await client.submit([request(0, 300)], note={"too much for a message": 2**70})
    begun = await some(call, 1)
    with pytest.raises(OverflowError):
        await client.pause(call, describe(call))
    assert begun[0] + (await collect(call))[0] == counted(0, 300)


def test_a_redis_that_lost_its_last_second_gives_no_request_twice(bus, connection):
    serve(bus, connection)
    bus.set_capacity(1)
    add(connection, 1)
    assert numbers(arrived(bus, 1)) == [1]
    connection.xgroup_setid(STREAM, keys.GROUP, "0")
    bus.set_capacity(2)
    add(connection, 2)
    assert numbers(arrived(bus, 1)) == [2]


def test_logprobs_of_prompts_go_in_messages_of_their_own(bus, connection):
    """Those of two long prompts together may be more than Redis takes."""
    serve(bus, connection)
    scored = [RowOutput(row, 0, [5], prompt_logprobs=[None, TokenLogprobs(-1.0, [])]) for row in (1, 2)]
    bus.publish(("w", output) for output in [*scored, RowOutput(3, 0, [5]), RowOutput(4, 0, [5])])
    until(lambda: connection.xlen(keys.replies("w")) == 3)
    replies = [
        msgspec.msgpack.decode(fields[b"m"], type=StepReply) for _, fields in connection.xrange(keys.replies("w"))
    ]
    assert [[output.row for output in reply.rows] for reply in replies] == [[1], [2], [3, 4]]
