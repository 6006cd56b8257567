"""A server that answers exactly as each request's script says, in a process of its own, and tells when it wrote what.

The script is the field `script` of any JSON body sent to any path; `GET /truth/<x-request-id>` gives the times, on the
clock `time.monotonic`, at which the first and the last byte of each step were handed to the socket, `GET /prompts` what
it was asked since it was last told, and `GET /stall/<seconds>` stops the whole server and gives when it did and until
when.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import msgspec
from aiohttp import web


class Step(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One act of the server: wait, then write, then perhaps cut the connection."""

    wait: float = 0.0
    write: str = ""
    every_byte: bool = False  # one write each
    cut: bool = False


class Script(msgspec.Struct, kw_only=True, omit_defaults=True):
    steps: list[Step] = []
    status: int = 200
    headers: dict[str, str] = {}
    content_type: str = "text/event-stream"


class Body(msgspec.Struct):
    script: Script
    prompt: Any = None
    messages: Any = None


def script_body(script: Script) -> dict[str, Any]:
    """For `extra_body` of a request."""
    return {"script": msgspec.to_builtins(script)}


@contextmanager
def running_mock_server() -> Iterator[str]:
    """Its base URL. It ends when its standard input is closed, so that it does not outlive the tests."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.loadgen.mock_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(timeout=10)


def written(server: str, request_id: str) -> list[list[float]]:
    """The truth about a request so far: nothing while it is still on its way, although it was sent."""
    with urlopen(f"{server}/truth/{request_id}") as response:
        return json.load(response)


class MockServer:
    def __init__(self) -> None:
        self._truth: dict[str, list[tuple[float, float]]] = {}
        self._prompts: list[Any] = []
        self.app = web.Application()
        self.app.router.add_get("/prompts", self._tell_prompts)
        self.app.router.add_get("/stall/{seconds}", self._stall)
        self.app.router.add_get("/truth/{id}", self._tell)
        self.app.router.add_post("/{path:.*}", self._perform)

    async def _tell(self, request: web.Request) -> web.Response:
        return web.json_response(self._truth.get(request.match_info["id"], []))

    async def _tell_prompts(self, request: web.Request) -> web.Response:
        prompts, self._prompts = self._prompts, []
        return web.json_response(prompts)

    async def _stall(self, request: web.Request) -> web.Response:
        begun = time.monotonic()
        time.sleep(float(request.match_info["seconds"]))  # all of its requests stand still, as in a stopped server
        return web.json_response([begun, time.monotonic()])

    async def _perform(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read(), type=Body)
        script = body.script
        self._prompts.append(body.prompt or body.messages)
        truth = self._truth.setdefault(request.headers.get("x-request-id", ""), [])
        response = web.StreamResponse(status=script.status, headers=script.headers)
        response.content_type = script.content_type
        await response.prepare(request)
        for step in script.steps:
            await asyncio.sleep(step.wait)
            data = step.write.encode()
            pieces = [data[i : i + 1] for i in range(len(data))] if step.every_byte else [data]
            first = last = time.monotonic()
            for piece in pieces:
                last = time.monotonic()
                await response.write(piece)
                await asyncio.sleep(0)
            truth.append((first, last))
            if step.cut:
                assert request.transport is not None
                request.transport.abort()
                return response
        await response.write_eof()
        return response


async def _serve() -> None:
    # A client that has gone ends the script of its request.
    runner = web.AppRunner(MockServer().app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve())
