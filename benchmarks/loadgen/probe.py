"""What is asked of a server around a load: whether it answers, its model, and its own counters."""

import asyncio
import re
import time
from contextlib import suppress
from math import isfinite
from typing import Any

import aiohttp
import msgspec

from benchmarks.loadgen.capture import exchange, open_session
from benchmarks.loadgen.exchange import Exchange, Prompt
from benchmarks.loadgen.target import Target, find_backend, make_request

PROBE_SECONDS = 10.0  # for one page of a server's own figures
READY_POLL_SECONDS = 1.0
PAGES = ("/stats", "/server_info", "/get_server_info", "/props")  # those that servers of several kinds have
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*(?:\{.*\})?)\s+(\S+)")


class NotReady(Exception):
    """The server did not answer in time. The message holds what it last did."""


async def find_model(target: Target) -> str:
    """The first of /v1/models, or "" where the server has no such page."""
    async with open_pages(target) as session:
        page = await _json(session, target, "/v1/models")
    try:
        return str(page["data"][0]["id"]) if page else ""
    except (LookupError, TypeError):
        return ""


async def metrics(session: aiohttp.ClientSession, target: Target) -> dict[str, float] | None:
    """The first server's, by sample name and labels. `session` is of `open_pages`."""
    text = await _page(session, target, "/metrics")
    return None if text is None else _samples(text)


async def inspect(target: Target) -> dict[str, Any]:
    """Its `metrics`, and the JSON pages, as far as the first server has them."""
    async with open_pages(target) as session:
        known = await metrics(session, target)
        found: dict[str, Any] = {} if known is None else {"metrics": known}
        for path in PAGES:
            if page := await _json(session, target, path):
                found[path.strip("/")] = page
    return found


async def profiler(target: Target, what: str) -> str:
    """Have every server `start` or `stop` its profiler. Returns what is wrong with the first that does not, or ""."""
    problems = []
    async with open_pages(target) as session:
        for url in target.urls:
            page = f"{url}/{what}_profile"
            try:
                async with session.post(page, allow_redirects=False) as response:
                    if response.status != 200:
                        problems.append(f"--profile: {page} answered {response.status}")
            except (aiohttp.ClientError, TimeoutError) as error:
                problems.append(f"--profile: {page}: {error or type(error).__name__}")
    return next(iter(problems), "")


async def wait_until_ready(target: Target, prompt: Prompt, seconds: float) -> None:
    """Send `prompt` until it is answered. Raises NotReady after `seconds`, and ValueError if it cannot be sent."""
    request = make_request(target, find_backend(target.backend, target.template), prompt, 0)
    begun = time.monotonic()
    async with open_session(verify_tls=target.verify_tls) as session:
        while True:
            answer = await exchange(
                session, request.url, request.headers, request.body, time.monotonic, target.timeouts
            )
            if not answer.error:
                return
            if time.monotonic() - begun + READY_POLL_SECONDS > seconds:
                raise NotReady(f"{request.url} did not answer within {seconds:g} s: {_shown(answer)}")
            await asyncio.sleep(READY_POLL_SECONDS)


def open_pages(target: Target) -> aiohttp.ClientSession:
    """For the pages of a server. Must be called in a running event loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=target.verify_tls),
        headers=target.headers,
        timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS),
    )


def _shown(answer: Exchange) -> str:
    return f"{answer.error}: {answer.error_text}"


async def _json(session: aiohttp.ClientSession, target: Target, path: str) -> Any:
    text = await _page(session, target, path)
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None


async def _page(session: aiohttp.ClientSession, target: Target, path: str) -> str | None:
    """None where the server has no such page, or does not answer: a load can be measured all the same.

    A redirect is no page: only the server that may be loaded is asked, and not whomever it names.
    """
    try:
        async with session.get(target.urls[0] + path, allow_redirects=False) as response:
            return await response.text() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None


def _samples(text: str) -> dict[str, float]:
    """Prometheus's text form. Values that are no number (NaN, infinities) are left out: JSON has none."""
    samples = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            with suppress(ValueError):  # a page of another kind may have any word there
                samples[match[1]] = float(match[2])
    return {name: value for name, value in samples.items() if isfinite(value)}
