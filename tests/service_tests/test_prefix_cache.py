"""A long beginning that many prompts have in common, sent all at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inference.bus.messages import Generate, Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.engine import Engine
from inference.engine.torch_backend import TorchBackend
from inference.history import BLOCK
from inference.text.tokenizer import get_tokenizer
from tests.service import Service
from tests.service_tests.clients import SECONDS

ENDINGS = 100
WHOLE = 5  # of these, prefilled as a whole to compare with: that takes long
TOKENS = 8
SHARED = "The same notes come before every question. " + "Note: rivers run to the sea. " * 256
KEPT = 8 * BLOCK  # tokens of it up to its last border; a few more follow


def prompt_of(ending: int) -> str:
    return f"{SHARED}Question {ending}: {7919 * ending}"


@pytest.fixture
async def http(service: Service) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        service.url, connector=connector, timeout=aiohttp.ClientTimeout(SECONDS)
    ) as session:
        yield session


async def ask(http: aiohttp.ClientSession, ending: int) -> tuple[str, int, int]:
    """The greedy text, the prompt's tokens, and those of them that were cached."""
    body = {"prompt": prompt_of(ending), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    async with http.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        reply = await response.json()
    usage = reply["usage"]
    return reply["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def settled(http: aiohttp.ClientSession) -> dict[str, Any]:
    """/stats, once nothing runs and a heartbeat later."""
    first = 0.0
    async with asyncio.timeout(SECONDS):
        while True:
            async with http.get("/stats") as response:
                stats = await response.json()
            updated = stats["engines"][0]["updated"]
            first = first or updated
            if updated > first and stats["running"] == stats["waiting"] == 0:
                return stats
            await asyncio.sleep(0.05)


def expected_texts(backend: TorchBackend) -> list[str]:
    """The text behind each ending, from a state that was fed the common beginning once and put into every slot."""
    prompts = [get_tokenizer().encode(prompt_of(ending)) for ending in range(ENDINGS)]
    assert all(prompt[:KEPT] == prompts[0][:KEPT] for prompt in prompts)
    for begin in range(0, KEPT, BLOCK):
        backend.launch(StepPlan(chunks=[Chunk(0, prompts[0][begin : begin + BLOCK], sample=False)]))
    shared = backend.export_state(0)
    for slot, prompt in enumerate(prompts):
        backend.open_slot(slot, Sampling(temperature=0.0), [], [], prompt)
        backend.import_state(slot, shared)
    plan = StepPlan(chunks=[Chunk(slot, prompt[KEPT:], sample=True) for slot, prompt in enumerate(prompts)])
    tokens: list[list[int]] = [[] for _ in prompts]
    for _ in range(TOKENS):
        for slot, token in backend.launch(plan).result().tokens.items():
            tokens[slot].append(token)
        plan = StepPlan(decode=list(range(ENDINGS)))
    return [get_tokenizer().decode(ids) for ids in tokens]


def uncached_text(backend: TorchBackend, ending: int) -> str:
    engine = Engine(backend, step_tokens=BLOCK)
    prompt = get_tokenizer().encode(prompt_of(ending))
    sampling = Sampling(temperature=0.0)
    engine.submit(Generate(web="", row=0, model="", prompt=prompt, max_tokens=TOKENS, sampling=sampling, stop_ids=[]))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for _web, output in engine.step() for token in output.tokens]
    return get_tokenizer().decode(tokens)


async def test_a_beginning_that_many_prompts_share_is_prefilled_once(
    http: aiohttp.ClientSession, tiny_checkpoint: Path
):
    before = await settled(http)
    answers = await asyncio.gather(*(ask(http, ending) for ending in range(ENDINGS)))
    after = await settled(http)
    prompt_tokens = sum(prompt for _text, prompt, _cached in answers)
    cached = [cached for _text, _prompt, cached in answers]
    assert sorted(cached) == [0] + [KEPT] * (ENDINGS - 1)
    assert after["prompt_tokens"] - before["prompt_tokens"] == prompt_tokens - sum(cached)
    assert after["cached_tokens"] - before["cached_tokens"] == sum(cached)
    everything = after["cached_tokens"] + after["prompt_tokens"]
    assert after["prefix_hit_rate"] == pytest.approx(after["cached_tokens"] / everything)

    backend = TorchBackend(tiny_checkpoint, slots=ENDINGS)
    backend.open_slot(0, Sampling(), [], [], [])
    expected = expected_texts(backend)
    assert [text for text, *_ in answers] == expected
    assert len(set(expected)) > ENDINGS / 2, "texts that are the same cannot show a mix-up"
    assert [uncached_text(backend, ending) for ending in range(WHOLE)] == expected[:WHOLE]
