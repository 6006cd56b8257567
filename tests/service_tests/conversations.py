"""Many sessions on a running service, and what they must say: greedy, on the tiny model."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from inference.bus.messages import Generate, History, Sampling
from inference.engine.engine import Engine
from inference.engine.state_cache import StateCache
from inference.engine.torch_backend import TorchBackend
from inference.history import extend, root, unpack_ids
from inference.text.tokenizer import get_tokenizer
from tests.service import Service

TOKENS = 4  # of each reply
RETRY_SECONDS = 0.1
GIVE_UP_SECONDS = 90.0

# A text of these words has one tokenisation, so it stands for its tokens.
WORDS = [" cat", " dog", " house", " tree", " river", " stone", " cloud", " bird", " apple", " road", " ship", " light"]
BIAS = {get_tokenizer().encode(word)[0]: 100.0 for word in WORDS}
GREEDY = {
    "temperature": 0,
    "max_tokens": TOKENS,
    "stop_tokens": [],
    "ignore_eos": True,
    "logit_bias": {str(token): bias for token, bias in BIAS.items()},
}

LOG = """
    select prompt_ids, reply_ids from rwkv_sessions_turn turn
    join rwkv_sessions_session session on session.id = turn.session_id where key = '{}' order by number
"""


def prompt_of(session: int, turn: int) -> str:
    return f"Session {session} says {turn}"


def fed_prompt(session: int, turn: int) -> list[int]:
    text = prompt_of(session, turn)
    return get_tokenizer().encode(f"\n\n{text}" if turn else text)


def expected_texts(checkpoint: Path, sessions: int, turns: int) -> list[list[str]]:
    """Every reply of every session, from an engine in this process that never has to evict a state."""
    parallel = 16
    backend = TorchBackend(checkpoint, slots=parallel + sessions)
    cache = StateCache(backend, slots=range(parallel, parallel + sessions))
    engine = Engine(backend, step_tokens=256, states=cache)
    heads = [History(digest=root(backend.model.fingerprint, "test"))] * sessions
    texts: list[list[str]] = [[] for _ in heads]
    for turn in range(turns):
        replies: list[list[int]] = [[] for _ in heads]
        for session, head in enumerate(heads):
            engine.submit(
                Generate(
                    web="test",
                    row=session,
                    model="",
                    prompt=fed_prompt(session, turn),
                    max_tokens=TOKENS,
                    sampling=Sampling(temperature=0.0, logit_bias=BIAS),
                    stop_ids=[],
                    history=head,
                    keep=True,
                )
            )
        while engine.has_work:
            for _web, output in engine.step():
                replies[output.row] += output.tokens
        for session, reply in enumerate(replies):
            ids = fed_prompt(session, turn) + reply
            head = heads[session]
            heads[session] = History(digest=extend(head.digest, ids), tokens=head.tokens + len(ids))
            texts[session].append(get_tokenizer().decode(reply))
    return texts


class Talk:
    """Clients of one service's sessions."""

    def __init__(self, service: Service, http: aiohttp.ClientSession) -> None:
        self._service = service
        self._http = http

    async def turn(self, session: int, turn: int, **more: Any) -> str:
        """One turn, sent again as long as the service says that it cannot serve now (and so has kept nothing)."""
        body = {"contents": [prompt_of(session, turn)], "session_id": f"s{session}", **GREEDY} | more
        async with asyncio.timeout(GIVE_UP_SECONDS):
            while True:
                async with self._http.post(f"{self._service.url}/state/chat/completions", json=body) as response:
                    if response.status == 200:
                        return (await response.json())["choices"][0]["message"]["content"]
                    assert response.status == 503, await response.text()
                await asyncio.sleep(RETRY_SECONDS)

    async def play(self, sessions: int, turns: int, first: int = 0, at_once: int = 16) -> list[list[str]]:
        """Turns of all sessions, each round of turns over all sessions before the next.

        Every other round goes backward, so that the sessions of its first turns were used just before.
        """
        texts: list[list[str]] = [[] for _ in range(sessions)]
        free = asyncio.Semaphore(at_once)

        async def one(session: int, turn: int) -> None:
            async with free:
                texts[session].append(await self.turn(session, turn))

        for turn in range(first, first + turns):
            await asyncio.gather(*(one(session, turn) for session in range(sessions)[:: -1 if turn % 2 else 1]))
        return texts

    async def stats(self) -> dict[str, Any]:
        async with self._http.get(f"{self._service.url}/stats") as response:
            return await response.json()

    async def status(self) -> dict[str, Any]:
        async with self._http.get(f"{self._service.url}/state/status") as response:
            assert response.status == 200, await response.text()
            return await response.json()


@asynccontextmanager
async def talking(service: Service) -> AsyncIterator[Talk]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(GIVE_UP_SECONDS)) as http:
        yield Talk(service, http)


def logged_turns(service: Service, key: str) -> list[tuple[str, str]]:
    """Prompt and reply of each turn of a session, in the order of the log, without the blank lines between them."""
    decode = get_tokenizer().decode
    return [
        (decode(unpack_ids(prompt)).removeprefix("\n\n"), decode(unpack_ids(reply)))
        for prompt, reply in query(service, LOG.format(key))
    ]


def query(service: Service, sql: str, database_url: str = "") -> list[tuple[Any, ...]]:
    """What the service's database answers."""
    if urlsplit(database_url).scheme.startswith("postgres"):
        import psycopg

        with psycopg.connect(database_url) as connection:
            return connection.execute(sql).fetchall()
    connection = sqlite3.connect(service.var_dir / "db.sqlite3")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()
