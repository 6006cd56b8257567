"""Chat and batch routes with several choices each, under 64 clients at once: no choice is mixed up or out of order."""

import asyncio
import json
from collections import defaultdict
from typing import Any

import aiohttp

from tests.service import Service

CLIENTS = 64
TOKENS = 12
GREEDY = {"temperature": 0, "top_k": 1, "max_tokens": TOKENS, "stop_tokens": [], "ignore_eos": True}


def request_of(number: int) -> tuple[str, dict[str, Any]]:
    """The route and body of one client; every client and choice has a prompt of its own."""
    contents = [f"Client {number}, prompt {index}: {7919 * number + index}" for index in range(3)]
    if number % 3 == 0:
        message = {"role": "user", "content": contents[0]}
        return "/openai/v1/chat/completions", {"messages": [message], "n": 2, **GREEDY}
    route = "/v1/chat/completions" if number % 3 == 1 else "/v2/chat/completions"
    return route, {"contents": contents, "chunk_size": 1, "pad_zero": False, **GREEDY}


async def whole(session: aiohttp.ClientSession, number: int) -> dict[int, str]:
    route, body = request_of(number)
    async with session.post(route, json=body) as response:
        assert response.status == 200, await response.text()
        reply = await response.json()
    return {choice["index"]: choice["message"]["content"] for choice in reply["choices"]}


async def streamed(session: aiohttp.ClientSession, number: int) -> dict[int, str]:
    """The texts of all choices, put together in the order in which their frames came."""
    route, body = request_of(number)
    texts: dict[int, str] = defaultdict(str)
    ended: set[int] = set()
    async with session.post(route, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        events = (await response.read()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            assert choice["index"] not in ended, "a frame came behind the last one of its choice"
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice.get("finish_reason"):
                assert choice["finish_reason"] == "length"
                ended.add(choice["index"])
    assert ended == set(texts)
    return dict(texts)


async def test_streams_of_many_choices_equal_the_replies_of_one_client_alone(service: Service):
    timeout, connector = aiohttp.ClientTimeout(100), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(service.url, timeout=timeout, connector=connector) as session:
        alone = [await whole(session, number) for number in range(CLIENTS)]
        together = await asyncio.gather(*(streamed(session, number) for number in range(CLIENTS)))
    assert len({text for texts in alone for text in texts.values()}) > 2 * CLIENTS, "equal texts show no mix-up"
    assert together == alone
