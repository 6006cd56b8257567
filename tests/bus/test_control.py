"""Orders to web processes about their requests, what is kept of paused ones, and engines that change models."""

import asyncio

import msgspec
import pytest
from redis import asyncio as aioredis

from inference.bus import paused
from inference.bus.call import NoEngine, QueueFull
from inference.bus.client import BusClient
from inference.bus.messages import Generate
from inference.bus.paused import PausedRequest
from tests.bus.test_bus import collect, counted, idle, request, some_of, until_async


async def test_every_process_that_listens_answers(start_worker, client, redis_url):
    start_worker()
    other = BusClient(redis_url, max_queue=1000, grace_seconds=20)
    try:
        for bus, name in ((client, "one"), (other, "two")):
            call = await bus.submit([request(0, 100_000, request_id=name), request(500, 100_000, request_id=name)])
            await call.take()
        for bus in (client, other):
            assert sorted(found.id for found in await bus.give_order("list")) == ["one", "two"]
        (two,) = await client.give_order("list", "two")
        assert (two.prompt_tokens, two.max_tokens) == (2, 200_000)
        assert two.generated_tokens >= 1
    finally:
        await other.close()


async def test_an_order_nobody_hears_is_answered_at_once(client, connection):
    assert await client.give_order("stop") == []


async def test_a_stopped_request_ends_and_frees_its_slots_even_if_no_engine_has_taken_it(
    start_worker, client, connection
):
    start_worker(slots=1)
    running = await client.submit([request(0, 100_000, request_id="running")])
    queued = await client.submit([request(0, 100_000, request_id="queued")])
    await running.take()
    assert [found.id for found in await client.give_order("stop", "queued")] == ["queued"]
    assert [output.finish for _, output in await queued.take()] == ["stop"]
    assert [found.id for found in await client.give_order("stop")] == ["running"]
    assert (await running.take())[-1][1].finish == "stop"
    assert running.done and queued.done
    await until_async(lambda: idle(connection))


async def test_a_paused_request_goes_on_behind_its_last_token(start_worker, client, redis_url):
    start_worker(slots=4)
    call = await client.submit([request(0, 3), request(1000, 50_000)], note={"any": "note"})
    before = await some_of(call, 50)
    await client.give_order("pause")
    while not call.done:
        for index, output in await call.take():
            before[index] += output.tokens
    assert before[0] == counted(0, 3)

    other = BusClient(redis_url, max_queue=1000, grace_seconds=20)
    try:
        assert [found.id for found in await other.paused()] == [""]
        async with other.resuming("") as found, client.resuming("") as nobodys:
            assert (msgspec.msgpack.decode(found.note), found.generated) == ({"any": "note"}, {1: before[1]})
            assert nobodys is None, "one process has it"
        while await other.paused():
            await asyncio.sleep(0.01)
        total = len(before[1]) + 100
        (after,) = await collect(await other.submit([request(1000, total, generated=found.generated[1])]))
        assert before[1] + after == counted(1000, total)
    finally:
        await other.close()


async def resumed(client: BusClient) -> PausedRequest:
    """The paused request, once nobody else resumes it."""
    async with asyncio.timeout(20):
        while True:
            async with client.resuming("") as found:
                if found:
                    return found


async def paused_request(client: BusClient) -> None:
    call = await client.submit([request(0, 100_000)], note="note")
    await call.take()
    await client.give_order("pause")


async def resume_in_vain(client: BusClient) -> None:
    async with client.resuming(""):
        raise QueueFull("no room")


async def test_a_request_stays_paused_when_it_cannot_be_resumed(start_worker, client):
    start_worker()
    await paused_request(client)
    with pytest.raises(QueueFull):
        await resume_in_vain(client)
    assert await resumed(client)


async def test_a_request_stays_paused_when_the_process_that_resumes_it_dies(
    start_worker, client, redis_url, monkeypatch
):
    monkeypatch.setattr(paused, "RESUMING_SECONDS", 1.0)
    start_worker()
    await paused_request(client)
    async with aioredis.Redis.from_url(redis_url) as dying:
        assert await paused.claim(dying, "")
    assert await resumed(client)


async def test_a_claim_whose_answer_got_lost_is_the_same_one(start_worker, client, monkeypatch):
    """The client of Redis asks again by itself."""
    start_worker()
    await paused_request(client)
    once = aioredis.Redis.eval

    async def twice(self, *args):
        await once(self, *args)
        return await once(self, *args)

    monkeypatch.setattr(aioredis.Redis, "eval", twice)
    assert await paused.claim(client.redis, "")


async def test_what_was_paused_anew_is_not_forgotten_with_what_it_was_before(start_worker, client, redis_url):
    start_worker()
    await paused_request(client)
    async with aioredis.Redis.from_url(redis_url) as other:
        before = await paused.claim(other, "")
        await paused_request(client)
        await before.forget()
    assert [found.id for found in await client.paused()] == [""]


async def test_a_request_without_a_note_is_stopped_instead_of_paused(start_worker, client):
    start_worker()
    call = await client.submit([request(0, 100_000)])
    await call.take()
    await client.give_order("pause")
    assert (await call.take())[-1][1].finish == "stop"
    assert await client.paused() == []


async def test_rows_of_a_model_that_no_engine_has_any_more_fail(start_worker, redis_url, connection):
    """Another model's engine is alive, which does not help them."""
    worker = start_worker()
    client = BusClient(redis_url, max_queue=1000, grace_seconds=1.0)
    try:
        call = await client.submit([request(0, 100_000)])
        await call.take()
        worker.kill()
        worker.wait()
        start_worker(model="other")
        served = await client.submit([Generate(web="", row=0, model="other", prompt=[5], max_tokens=3)])
        assert await collect(served) == [counted(5, 3)]
        failed = False
        async with asyncio.timeout(30):
            while not failed:
                try:
                    await call.take()
                except NoEngine as error:
                    failed = str(error) == "the engine was lost and has not come back"
    finally:
        await client.close()


async def test_an_engine_that_changes_models_serves_its_queue_first(start_worker, client, connection):
    worker = start_worker(slots=1, available=["counting", "next"])
    calls = [await client.submit([request(i, 100)]) for i in range(3)]
    (engine,) = await client.engines()
    await client.load_model([engine.engine], "unknown")
    await client.load_model(["another engine"], "next")
    await client.load_model([engine.engine], "next")
    assert [await collect(call) for call in calls] == [[counted(i, 100)] for i in range(3)]
    assert await asyncio.to_thread(worker.wait, 30) == 0
    assert worker.stdout.read().decode().strip() == "next"
