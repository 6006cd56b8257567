"""What is killed under a running stream comes back, and the stream goes on as if nothing had been."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from inference.bus import keys
from tests.service import Service, is_running, wait_until
from tests.service_tests.clients import Client, connected, started

TOKENS = 120
READ = 20  # frames, before the fault
GREEDY = {"prompt": "Nothing can stop this text: 17", "tokens": TOKENS}
DRAWN = {"prompt": "Nor this one: 39", "tokens": TOKENS, "temperature": 1.0, "top_p": 0.9, "seed": 5}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    with started(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint)) as service:
        yield service


@pytest.fixture(scope="module")
def expected(service: Service) -> list[str]:
    """The texts of GREEDY and DRAWN when nothing goes wrong."""

    async def ask() -> list[str]:
        async with connected(service) as client:
            return list(await asyncio.gather(client.text(**GREEDY), client.text(**DRAWN)))

    return asyncio.run(ask())


async def test_streams_go_on_after_the_engine_was_killed(service: Service, client: Client, expected: list[str]):
    web = service.child("web")
    async with client.stream(**GREEDY) as greedy, client.stream(**DRAWN) as drawn:
        await asyncio.gather(greedy.read(READ), drawn.read(READ))
        os.kill(service.child("engine"), signal.SIGKILL)
        await asyncio.gather(greedy.read_to_end(), drawn.read_to_end())
    assert [greedy.text, drawn.text] == expected
    assert greedy.done
    assert drawn.done
    assert "engine ended by SIGKILL" in service.output
    assert "rows again: their engine lost them" in service.output
    assert is_running(web)


async def test_streams_go_on_after_redis_was_killed(service: Service, client: Client, expected: list[str]):
    async with client.stream(**GREEDY) as greedy, client.stream(**DRAWN) as drawn:
        await asyncio.gather(greedy.read(READ), drawn.read(READ))
        with redis.Redis.from_url(service.redis_url) as connection:
            server = connection.info("server")["process_id"]
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: "redis ended by SIGKILL" in service.output, 10, "serve has noticed")
        await asyncio.gather(greedy.read_to_end(), drawn.read_to_end())
    assert [greedy.text, drawn.text] == expected
    assert greedy.done
    assert drawn.done
    assert expected[0].startswith(await client.text(GREEDY["prompt"], READ))


async def test_streams_go_on_after_redis_came_back_empty(service: Service, client: Client, expected: list[str]):
    async with client.stream(**GREEDY) as greedy, client.stream(**DRAWN) as drawn:
        await asyncio.gather(greedy.read(READ), drawn.read(READ))
        with redis.Redis.from_url(service.redis_url) as connection:
            connection.flushall()
            await asyncio.gather(greedy.read_to_end(), drawn.read_to_end())
            wait_until(lambda: connection.exists(keys.ENGINES), 10, "the engine beats again")
    service.wait_until_healthy()  # the web has seen it
    assert [greedy.text, drawn.text] == expected
    assert greedy.done
    assert drawn.done
    assert expected[0].startswith(await client.text(GREEDY["prompt"], READ))
