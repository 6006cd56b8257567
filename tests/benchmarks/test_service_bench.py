"""What `bench_service` measures: the whole of a case, and the part of it in which all clients are busy."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks import service_bench
from benchmarks.service_bench import Figures, Load, RequestFailed, Timing, run_case, steady

FRAMES = 4  # of text, in each answer
TOKENS = 8  # of each answer
TURNS = 50  # of the event loop, which server and client share: after so many the client has seen what was written
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": TOKENS}}


class Pace:
    """Answers in text frames, each of which may wait for a step of another answer.

    `holds` says what answer `number` (from 1 on, the warm-up being 0) waits for ahead of frame `place`: (another
    answer, how many of its frames have come), where FRAMES + 1 is its end.
    """

    def __init__(self, holds: dict[tuple[int, int], tuple[int, int]]) -> None:
        self._holds = holds
        self._written: dict[int, int] = {}
        self._changed = asyncio.Condition()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        number = len(self._written)
        self._written[number] = 0
        response = web.StreamResponse()
        await response.prepare(request)
        for place in range(1, FRAMES + 1):
            await self._wait(number, place)
            await self._write(response, {"choices": [{"index": 0, "text": "a"}]}, number)
        await response.write(f"data: {json.dumps(USAGE)}\n\ndata: [DONE]\n\n".encode())
        await response.write_eof()
        await self._seen(number)
        return response

    async def _wait(self, number: int, place: int) -> None:
        other, frames = self._holds.get((number, place), (number, 0))
        async with self._changed:
            await self._changed.wait_for(lambda: self._written.get(other, 0) >= frames)

    async def _write(self, response: web.StreamResponse, frame: dict[str, Any], number: int) -> None:
        data = f"data: {json.dumps(frame)}\n\n".encode()
        await response.write(data[:-1])  # the end of a frame in a piece of its own
        await self._turns()
        await response.write(data[-1:])
        await self._seen(number)

    async def _seen(self, number: int) -> None:
        await self._turns()
        async with self._changed:
            self._written[number] += 1
            self._changed.notify_all()

    async def _turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def measure(url: str, *, clients: int, requests_per_client: int = 1, processes: int = 1) -> Figures:
    load = Load(
        base_url=url,
        password="",
        model="m",
        clients=clients,
        tokens=TOKENS,
        prompt_tokens=3,
        requests_per_client=requests_per_client,
    )
    return await run_case(load, web=set(), engine=set(), report=lambda line: None, processes=processes)


async def test_the_steady_figure_is_of_the_time_in_which_all_clients_are_busy():
    # Answers 1 and 3 are of the client that is first, 2 and 4 of the other one.
    holds = {
        (2, 1): (1, 3),  # begins when the first answer has only a frame to go,
        (1, 4): (2, 1),
        (2, 3): (3, FRAMES + 1),  # and has half of its frames left when the first client is through
    }
    async with serving(Pace(holds).answer) as url:
        figures = await measure(url, clients=2, requests_per_client=2)
    assert (figures.requests, figures.tokens) == (4, 4 * TOKENS)
    in_the_window = 1 + 1 + FRAMES  # the last of answer 1, the second of answer 2, all of answer 3
    assert figures.steady_tokens == in_the_window * TOKENS / FRAMES
    assert figures.steady_seconds is not None and 0 < figures.steady_seconds < figures.seconds


async def test_one_client_is_steady_from_its_first_token_on():
    async with serving(Pace({}).answer) as url:
        figures = await measure(url, clients=1, requests_per_client=3)
    assert figures.tokens == 3 * TOKENS
    assert figures.steady_tokens == (3 * FRAMES - 1) * TOKENS / FRAMES


async def test_clients_of_several_processes_are_one_case():
    """No answer ends before another has begun, so the processes do run side by side."""
    holds = {(number, FRAMES): (number % 3 + 1, 1) for number in (1, 2, 3)}
    async with serving(Pace(holds).answer) as url:
        figures = await measure(url, clients=3, processes=2)
    assert (figures.clients, figures.requests, figures.tokens) == (3, 3, 3 * TOKENS)
    assert 0 < figures.ttft_ms_p50 <= figures.ttft_ms_p99 < 1000 * figures.seconds
    assert figures.client_cpu_percent > 0


async def test_a_request_that_fails_in_one_of_several_processes_ends_the_case():
    answers = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal answers
        answers += 1
        if answers == 3:  # the warm-up being the first
            return web.Response(text="no engine", status=503)
        return await Pace({(0, FRAMES): (1, 1)} if answers > 1 else {}).answer(request)  # the others never end

    async with serving(answer) as url:
        with pytest.raises(RequestFailed, match="503: no engine"):
            await measure(url, clients=3, processes=3)


async def test_without_a_time_in_which_all_are_busy_there_is_no_steady_figure():
    async with serving(Pace({(2, 1): (1, FRAMES + 1)}).answer) as url:
        figures = await measure(url, clients=2)
    assert figures.tokens == 2 * TOKENS
    assert (figures.steady_seconds, figures.steady_tokens, figures.steady_tokens_per_second) == (None, None, None)


def test_the_steady_rate_of_a_pace_that_is_known():
    """A token each 0.1 s for each of two clients, of whom the second begins later and ends later."""
    first = [timing(0.0, begins=1.0), timing(2.0, begins=3.0)]
    second = [timing(0.0, begins=1.5), timing(2.5, begins=3.5)]
    found = steady([first, second])
    assert found is not None
    # From 1.5 to 3.9: of the first 4 tokens and 10, of the second 9 and 5.
    assert (found.seconds, found.tokens) == (pytest.approx(2.4), pytest.approx(28))


def timing(sent: float, *, begins: float) -> Timing:
    """Ten tokens in ten frames, 0.1 s apart."""
    arrivals = array("d", [round(begins + 0.1 * place, 6) for place in range(10)])
    return Timing(sent, arrivals[0], arrivals[-1], 10, arrivals)


def answering(*frames: str, status: int = 200) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="".join(f"data: {frame}\n\n" for frame in frames), status=status)

    return answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (answering("no engine", status=503), "503: data: no engine"),
        (answering('{"choices": [{"text": "a"}]}'), "without"),
        (answering('{"error": {"message": "no engine"}}', "[DONE]"), "a stream failed: no engine"),
    ],
)
async def test_a_request_that_fails_ends_the_case(answer: Callable[[web.Request], Any], message: str):
    async with serving(answer) as url:
        with pytest.raises(RequestFailed, match=message):
            await measure(url, clients=2)


async def test_a_request_without_an_end_is_a_failure_with_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service_bench, "REQUEST_SECONDS", 0.05)
    async with serving(Pace({(0, 2): (0, FRAMES)}).answer) as url:
        with pytest.raises(RequestFailed, match=r"no end within 0\.05 s"):
            await measure(url, clients=1)
