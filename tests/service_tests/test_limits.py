"""A service of one slot, a queue of one row and a short patience: what it refuses, and when it gives up."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.service import Service, is_running
from tests.service_tests.clients import ENDLESS, SECONDS, Client, EngineView, Stream, started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    limits = {"ENGINE_SLOTS": "1", "MAX_QUEUE": "1", "ENGINE_GRACE_SECONDS": "1"}
    with started(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), **limits) as service:
        yield service


async def test_a_full_queue_refuses_and_goes_on(client: Client, engine: EngineView):
    waiting: list[asyncio.Task[str]] = []
    async with client.stream("Runs", ENDLESS) as running, asyncio.timeout(SECONDS):
        await running.read(1)
        while not (waiting and waiting[-1].done()):
            waiting.append(asyncio.create_task(client.text("Waits", 3)))
            while not (waiting[-1].done() or engine.open_rows > len(waiting)):
                await asyncio.sleep(0.01)
        async with client.stream("Is refused", 3) as refused:
            await assert_refused(refused.response, 429, "the queue is full")
        await running.read(1)
    *queued, refused_too = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(refused_too, AssertionError)
    assert all(queued)
    assert len(queued) <= 2  # one in the queue, and perhaps one that the engine took before it was full
    assert await client.text("Comes later", 3)


async def test_the_slot_of_a_stream_that_was_left_goes_to_the_next(client: Client, engine: EngineView):
    async with client.stream("Leaves", ENDLESS) as leaving:
        await leaving.read(1)
        next_one = asyncio.create_task(client.text("Waits", 1))
        async with asyncio.timeout(SECONDS):
            while engine.open_rows < 2:
                await asyncio.sleep(0.01)
        left = time.perf_counter()
    assert await next_one
    print(f"the next client had its token {1000 * (time.perf_counter() - left):.1f} ms after the first had left")


async def test_the_slot_of_a_client_that_did_not_stream_is_free_once_it_is_gone(client: Client, engine: EngineView):
    asking = asyncio.create_task(client.text("Gives up", ENDLESS))
    async with asyncio.timeout(SECONDS):
        while not engine.held_rows:
            await asyncio.sleep(0.01)
    asking.cancel()
    print(f"the slot was free after {await engine.wait_until_free():.1f} ms")
    assert await client.text("Comes later", 3)


async def test_an_engine_that_does_not_come_back_ends_streams_and_refuses_requests(
    service: Service, client: Client, engine: EngineView
):
    web = service.child("web")
    async with client.stream("Is cut short", ENDLESS) as stream:
        await stream.read(5)
        waiting = asyncio.create_task(read_to_end(client, "Waits in vain"))
        async with asyncio.timeout(SECONDS):
            while engine.open_rows < 2:
                await asyncio.sleep(0.01)
        service.process.send_signal(signal.SIGSTOP)  # nobody starts another engine
        try:
            os.kill(service.child("engine"), signal.SIGKILL)
            await stream.read_to_end()
            for ended in (stream, await waiting):
                assert ended.error["message"] == "the engine was lost and has not come back"
                assert ended.done
            assert (await client.get("/health"))[0] == 503
            async with client.stream("Comes too early", 3) as refused:
                await assert_refused(refused.response, 503, "no model is loaded")
        finally:
            service.process.send_signal(signal.SIGCONT)
    service.wait_until_healthy()
    assert is_running(web)
    assert await client.text("Comes later", 3)  # the slot is not taken by a row that nobody waits for
    await client.wait_until_idle()


async def read_to_end(client: Client, prompt: str) -> Stream:
    async with client.stream(prompt, ENDLESS) as stream:
        await stream.read_to_end()
    return stream


async def assert_refused(response: aiohttp.ClientResponse, status: int, message: str) -> None:
    assert response.status == status
    assert int(response.headers["Retry-After"]) > 0
    assert message in (await response.json())["error"]["message"]
