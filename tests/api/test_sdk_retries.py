"""The official client and a server that is full: it is refused, waits as told, and is served by itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import openai
import pytest

from tests.service import Service

BODY = {"model": "rwkv7", "messages": [{"role": "user", "content": "Hi"}]}
ENDLESS = {**BODY, "max_tokens": 60_000, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def full_service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    """One slot, and room for one waiting row."""
    limits = {"ENGINE_SLOTS": "1", "MAX_QUEUE": "1"}
    service = Service(tmp_path_factory.mktemp("full"), MODEL=str(tiny_checkpoint), **limits)
    try:
        yield service.wait_until_healthy()
    finally:
        service.stop()


async def test_a_refused_request_is_repeated_until_there_is_room(full_service):
    refused = asyncio.Event()

    async def note_refusal(response: httpx.Response) -> None:
        if response.status_code == 429:
            assert int(response.headers["Retry-After"]) > 0
            refused.set()

    patient = httpx.AsyncClient(event_hooks={"response": [note_refusal]})
    common = {"base_url": f"{full_service.url}/v1", "api_key": "-"}
    async with (
        openai.AsyncOpenAI(max_retries=0, **common) as others,
        openai.AsyncOpenAI(max_retries=10, http_client=patient, **common) as client,
        asyncio.timeout(60),
    ):
        running = await others.chat.completions.create(stream=True, **ENDLESS)
        async for chunk in running:
            if chunk.choices[0].delta.content:  # the role comes while the row may still be waiting itself
                break
        waiting: list[asyncio.Task] = []
        while not any(task.done() for task in waiting):  # until one was refused: the queue is full then, and stays so
            waiting.append(asyncio.create_task(others.chat.completions.create(**ENDLESS)))
            await asyncio.wait(waiting, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        asked = asyncio.create_task(client.chat.completions.create(max_tokens=3, **BODY))
        await refused.wait()
        assert not asked.done()
        for task in waiting:
            task.cancel()
        await running.close()
        reply = await asked
        await asyncio.gather(*waiting, return_exceptions=True)
    assert reply.usage.completion_tokens == 3
