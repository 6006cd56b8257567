"""One HTTP exchange, kept as the bytes that came and the times they came at; nothing is parsed while the load runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import msgspec

from benchmarks.loadgen.exchange import Exchange
from benchmarks.loadgen.records import ErrorClass

Clock = Callable[[], float]  # seconds on the monotonic clock since the run's shared start

READ_BUFFER = 16 * 2**20  # aiohttp stops reading the socket at twice its default of 64 KB, which costs time to resume
DNS_SECONDS = 300
ERROR_TEXT_BYTES = 2048

# The first class that an exception is an instance of; what is not here depends on how far the exchange had come.
ERROR_CLASSES: tuple[tuple[type[Exception], ErrorClass], ...] = (
    (aiohttp.ClientConnectorDNSError, ErrorClass.DNS),
    (aiohttp.ClientSSLError, ErrorClass.TLS),
    (aiohttp.ConnectionTimeoutError, ErrorClass.TIMEOUT_CONNECT),
    (aiohttp.ClientPayloadError, ErrorClass.STREAM_TRUNCATED),
    (aiohttp.InvalidURL, ErrorClass.CLIENT_BUG),
    (aiohttp.ClientResponseError, ErrorClass.PARSE),
)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; None waits for ever. `first` counts from the send to the first byte of the body, `total` to its end."""

    connect: float | None = 30.0
    first: float | None = None
    total: float | None = 6 * 3600.0


def open_session(*, verify_tls: bool = True) -> aiohttp.ClientSession:
    """The session that all exchanges of a worker share. Must be called in a running event loop.

    It bounds nothing (the schedule does), keeps connections, and asks for no compression, which would delay a stream.
    """
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(_on_new_connection)
    trace.on_connection_reuseconn.append(_on_reused_connection)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=DNS_SECONDS, ssl=verify_tls),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER,
        trace_configs=[trace],
    )


async def exchange(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    clock: Clock,
    timeouts: Timeouts,
    cancel: asyncio.Event | None = None,
) -> Exchange:
    """POST `body` and read the answer to its end. Never raises for what the network or the server does.

    `session` comes from `open_session`. When `cancel` is set the request is given up, and what came so far is
    returned with the error `cancelled`. A cancelled task raises CancelledError as usual.
    """
    result = Exchange(sent=clock())
    try:
        async with asyncio.timeout(_shorter(timeouts.first, timeouts.total)) as limit, _until(cancel):
            await _transfer(session, url, headers, body, clock, timeouts, limit, result)
        _judge_status(result)
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        result.error = _classify(error, result, timeouts, cancel)
        result.error_text = f"{type(error).__name__}: {error}"
    result.done = clock()
    return result


async def _transfer(
    session: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    clock: Clock,
    timeouts: Timeouts,
    limit: asyncio.Timeout,
    result: Exchange,
) -> None:
    begun = asyncio.get_running_loop().time()
    async with session.post(
        url,
        data=body,
        headers=headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=timeouts.connect),
        trace_request_ctx=result,
    ) as response:
        result.headers = clock()
        result.http_status = response.status
        result.content_type = response.content_type
        result.retry_after = _seconds(response.headers.get("Retry-After"))
        append = result.pieces.append
        stream = response.content.iter_any()
        async for data in stream:
            append((clock(), data))
            break
        limit.reschedule(None if timeouts.total is None else begun + timeouts.total)
        async for data in stream:
            append((clock(), data))


@asynccontextmanager
async def _until(cancel: asyncio.Event | None) -> AsyncIterator[None]:
    """Raise TimeoutError inside when `cancel` is set."""
    if cancel is None:
        yield
        return

    async def expire(scope: asyncio.Timeout) -> None:
        await cancel.wait()
        scope.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as scope:
        watcher = asyncio.create_task(expire(scope))
        try:
            yield
        finally:
            watcher.cancel()


def _classify(error: Exception, result: Exchange, timeouts: Timeouts, cancel: asyncio.Event | None) -> ErrorClass:
    if isinstance(error, TimeoutError) and cancel is not None and cancel.is_set():
        return ErrorClass.CANCELLED
    for kind, name in ERROR_CLASSES:
        if isinstance(error, kind):
            return name
    if isinstance(error, TimeoutError):
        waited_for_first = not result.pieces and timeouts.first == _shorter(timeouts.first, timeouts.total)
        return ErrorClass.TIMEOUT_FIRST if waited_for_first else ErrorClass.TIMEOUT_TOTAL
    return ErrorClass.CONNECT if result.headers is None else ErrorClass.STREAM_TRUNCATED


def _judge_status(result: Exchange) -> None:
    status = result.http_status or 0
    if 200 <= status < 300:
        return
    if status == 429:
        result.error = ErrorClass.HTTP_429
    elif 400 <= status < 500:
        result.error = ErrorClass.HTTP_4XX
    else:
        result.error = ErrorClass.HTTP_5XX if status >= 500 else ErrorClass.PARSE
    text = b"".join(data for _, data in result.pieces)[:ERROR_TEXT_BYTES]
    result.error_text = f"HTTP {status}: {text.decode(errors='replace')}"


def _shorter(first: float | None, second: float | None) -> float | None:
    return min((seconds for seconds in (first, second) if seconds is not None), default=None)


def _seconds(retry_after: str | None) -> float | None:
    """None for the header's other form, a date, which is of the server's clock."""
    try:
        return None if retry_after is None else float(retry_after)
    except ValueError:
        return None


async def _on_new_connection(_session: object, context: SimpleNamespace, _params: object) -> None:
    _set_reused(context, False)


async def _on_reused_connection(_session: object, context: SimpleNamespace, _params: object) -> None:
    _set_reused(context, True)


def _set_reused(context: SimpleNamespace, reused: bool) -> None:
    """Requests of the session that are no exchange carry none."""
    if isinstance(context.trace_request_ctx, Exchange):
        context.trace_request_ctx.connection_reused = reused
