"""A small HTTP client for one server: keep-alive connections, patience with a busy server, clear errors."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import aiohttp
import msgspec

from benchmarks.evals.errors import EvalError

T = TypeVar("T")

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 600.0
BUSY = (429, 503)  # nothing was done, and it is worth asking again
BUSY_SECONDS = 120.0  # a request that was only refused for this long is given up
TRIES = 4  # of a request whose connection breaks, or that the server fails at
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
SHOWN_CHARACTERS = 300  # of an answer, in an error


class _Refused(Exception):
    """The server is busy. `seconds` is its Retry-After."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class _Failed(Exception):
    """The connection broke, or the server failed: worth another try."""


class Client:
    """Use as an async context manager. `key` is called for each request, since a key may expire."""

    def __init__(self, base_url: str, *, key: Callable[[], str] = str) -> None:
        self.base_url = base_url
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)  # who asks bounds how much is asked at one time
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._session
        await self._session.close()

    async def post(self, path: str, body: dict[str, Any], reply: type[T], seconds: float = REQUEST_SECONDS) -> T:
        """The decoded answer of success. Raises EvalError."""
        return self._decode(path, await self._ask("POST", path, msgspec.json.encode(body), seconds), reply)

    @overload
    async def get(self, path: str, reply: type[T]) -> T: ...

    @overload
    async def get(self, path: str, reply: type[T], *, optional: Literal[True]) -> T | None: ...

    async def get(self, path: str, reply: type[T], *, optional: bool = False) -> T | None:
        """As `post`; an `optional` path that the server does not have, or not in this form, is None."""
        try:
            return self._decode(path, await self._ask("GET", path, None, REQUEST_SECONDS), reply)
        except _Unusable:
            if optional:
                return None
            raise

    async def hold(self, path: str, body: dict[str, Any], begun: asyncio.Event) -> None:
        """Read a stream to its end, or until cancelled; `begun` is set once the answer begins. Raises EvalError."""
        encoded = msgspec.json.encode({**body, "stream": True})
        await self._ask("POST", path, encoded, REQUEST_SECONDS, begun)

    async def _ask(
        self, method: str, path: str, body: bytes | None, seconds: float, begun: asyncio.Event | None = None
    ) -> bytes:
        pause, tries, refused = FIRST_PAUSE_SECONDS, 0, 0.0
        while True:
            wait = pause
            try:
                return await self._send(method, path, body, seconds, begun or asyncio.Event())
            except _Refused as error:
                wait = max(pause, error.seconds)
                refused += wait
                if refused > BUSY_SECONDS:
                    raise EvalError(f"{self.base_url}{path} is busy for {BUSY_SECONDS:.0f} s: {error}") from None
            except _Failed as error:
                tries += 1
                if tries == TRIES:
                    raise EvalError(f"{self.base_url}{path}: {error} ({TRIES} tries)") from None
            await asyncio.sleep(wait * random.uniform(1.0, 1.25))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _send(self, method: str, path: str, body: bytes | None, seconds: float, begun: asyncio.Event) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        assert self._session
        content = b""
        try:
            async with (
                asyncio.timeout(seconds),
                # Not followed: a redirect could lead to a host that is not allowed.
                self._session.request(
                    method, f"{self.base_url}{path}", data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                async for piece in response.content.iter_any():
                    content += piece
                    if response.status == 200:
                        begun.set()
        except aiohttp.ConnectionTimeoutError:
            raise _Failed(f"no connection within {CONNECT_SECONDS:g} s") from None
        except TimeoutError:
            raise _Failed(f"no answer within {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Failed(f"the connection was lost: {error or type(error).__name__}") from None
        if response.status == 200:
            begun.set()
            return content
        shown = f"HTTP {response.status}: {content.decode(errors='replace')[:SHOWN_CHARACTERS]}"
        if response.status in BUSY:
            raise _Refused(shown, _retry_after(response))
        if response.status >= 500:
            raise _Failed(shown)
        if response.status == 401:
            raise EvalError(f"{self.base_url} refuses the key (see --api-key-env): {shown}")
        raise _Unusable(f"{self.base_url}{path}: {shown}")

    def _decode(self, path: str, content: bytes, reply: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=reply)
        except msgspec.MsgspecError as error:
            raise _Unusable(f"{self.base_url}{path}: the answer is not as expected: {error}") from None


class _Unusable(EvalError):
    """An answer, but not one that helps."""


def _retry_after(response: aiohttp.ClientResponse) -> float:
    given = response.headers.get("Retry-After", "")
    return min(float(given), LONGEST_PAUSE_SECONDS) if given.isdecimal() else 0.0
