"""A stand-in for servers that are not ours: an OpenAI-compatible one whose faults a test chooses."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web


class Foreign:
    """`url`; `asked` counts the prompts it was asked. `behave` may answer in place of it, or raise."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[int, ...] | str] = Counter()
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self.with_logprobs = True
        self.likes = 2
        self.behave: Callable[[dict[str, Any]], web.StreamResponse | None] = lambda body: None
        self.hold_after: int | None = None  # requests behind these are never answered
        self.dead = False
        self.dtype: str | None = None  # with it, it has a /stats as our own service
        self.url = ""

    def die(self) -> None:
        """Break this request's connection, and every later one."""
        self.dead = True

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "foreign"}]})

    async def stats(self, request: web.Request) -> web.Response:
        if self.dtype is None:
            raise web.HTTPNotFound
        model = {"id": "foreign", "fingerprint": "f"}
        engine = {"state": "ready", "model": model, "backend": "torch", "device": "cpu", "dtype": self.dtype}
        return web.json_response({"engines": [engine]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests += 1
        self.headers.append(dict(request.headers))
        if self.hold_after is not None and self.requests > self.hold_after:
            await asyncio.Event().wait()
        if answer := self.behave(body):
            return answer
        if self.dead:
            assert request.transport
            request.transport.abort()
        self.asked.update(tuple(prompt) if isinstance(prompt, list) else prompt for prompt in body["prompt"])
        choices = [self._choice(index, prompt) for index, prompt in enumerate(body["prompt"])]
        usage = {"prompt_tokens": sum(map(len, body["prompt"])), "completion_tokens": len(choices)}
        return web.json_response({"choices": choices, "usage": usage})

    def _choice(self, index: int, prompt: list[int]) -> dict[str, Any]:
        """Token t has the log probability -t / 1000, and is the most likely one where `likes` divides it."""
        if not self.with_logprobs:
            return {"index": index, "text": " word", "logprobs": None, "finish_reason": "length"}
        own = [None, *(-token / 1000 for token in prompt[1:])]
        best = [
            None,
            *({"best": -token / 1000 + token % self.likes, f"id {token}": -token / 1000} for token in prompt[1:]),
        ]
        names = [f"id {token}" for token in prompt]
        logprobs = {"tokens": names, "token_logprobs": own, "top_logprobs": best, "text_offset": []}
        return {"index": index, "text": "", "logprobs": logprobs, "finish_reason": "length"}


@contextmanager
def running_foreign() -> Iterator[Foreign]:
    """The server in a thread of its own."""
    foreign = Foreign()
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.add_routes([web.get("/v1/models", foreign.models), web.get("/stats", foreign.stats)])
    app.add_routes([web.post("/v1/completions", foreign.completions)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        foreign.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def stop() -> None:
        await runner.cleanup()
        held = asyncio.all_tasks() - {asyncio.current_task()}
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield foreign
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
