"""SIGTERM to `serve` while streams run."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.service import Service, descendants, is_running
from tests.service_tests.clients import ENDLESS, Client, started


@pytest.fixture
def service(tmp_path: Path, tiny_checkpoint: Path) -> Iterator[Service]:
    with started(tmp_path, MODEL=str(tiny_checkpoint), SERVE_CELERY="true") as service:
        yield service


async def test_a_short_stream_completes_a_long_one_is_cut_and_no_process_stays(service: Service, client: Client):
    family = descendants(service.process.pid)
    async with client.stream("Is nearly done", 60) as short, client.stream("Is not", ENDLESS) as long:
        await asyncio.gather(short.read(5), long.read(5))
        stopping = asyncio.create_task(asyncio.to_thread(service.stop, signal.SIGTERM))
        await short.read_to_end()
        assert short.done
        assert short.finish_reason == "length"
        with pytest.raises(aiohttp.ClientPayloadError):
            await long.read_to_end()
        assert await stopping == 0
    assert not any(map(is_running, family))
