"""One exchange with a server of known behaviour: bytes and their times, connections, and every class of failure."""

import asyncio
import socket
import time

import aiohttp
import msgspec
import pytest

from benchmarks.loadgen.capture import Timeouts, exchange
from benchmarks.loadgen.exchange import Exchange
from benchmarks.loadgen.records import ErrorClass
from tests.loadgen.mock_server import Script, Step, script_body
from tests.service import free_port

LONG = 60.0  # a wait that no test sits out
FRAME = "data: {}\n\n"


async def send(
    session: aiohttp.ClientSession,
    url: str,
    script: Script | None = None,
    *,
    timeouts: Timeouts | None = None,
    cancel: asyncio.Event | None = None,
) -> Exchange:
    body = msgspec.json.encode(script_body(script or Script()))
    return await exchange(session, url, {}, body, time.monotonic, timeouts or Timeouts(), cancel)


async def test_bytes_come_with_their_times(session: aiohttp.ClientSession, server: str) -> None:
    begun = time.monotonic()
    got = await send(session, server, Script(steps=[Step(write="a"), Step(wait=0.3, write="b")]))
    assert b"".join(data for _, data in got.pieces) == b"ab"
    assert got.http_status == 200 and got.content_type == "text/event-stream"
    assert got.error is ErrorClass.NONE and got.error_text == ""
    times = [begun, got.sent, got.headers, *(time for time, _ in got.pieces), got.done]
    assert times == sorted(times)
    assert got.pieces[-1][0] - got.pieces[0][0] > 0.1


async def test_connections_are_kept(session: aiohttp.ClientSession, server: str) -> None:
    first, second = await send(session, server), await send(session, server)
    assert (first.connection_reused, second.connection_reused) == (False, True)


async def test_more_than_a_hundred_at_once(session: aiohttp.ClientSession, server: str) -> None:
    """aiohttp's own limit of 100 connections would make the others wait in the client."""

    async def newly_asked() -> int:
        async with session.get(f"{server}/prompts") as response:
            return len(await response.json())

    await newly_asked()  # by other tests
    script, cancel, begun = Script(steps=[Step(write=FRAME), Step(wait=LONG)]), asyncio.Event(), 0
    running = [asyncio.create_task(send(session, server, script, cancel=cancel)) for _ in range(120)]
    async with asyncio.timeout(LONG):
        while begun < len(running):  # none of them ends
            begun += await newly_asked()
    cancel.set()
    assert {one.error for one in await asyncio.gather(*running)} == {ErrorClass.CANCELLED}


async def test_a_large_answer(session: aiohttp.ClientSession, server: str) -> None:
    text = "x" * 300_000
    got = await send(session, server, Script(steps=[Step(write=text), Step(write=text)]))
    assert b"".join(data for _, data in got.pieces).decode() == text + text


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ErrorClass.HTTP_4XX),
        (404, ErrorClass.HTTP_4XX),
        (429, ErrorClass.HTTP_429),
        (500, ErrorClass.HTTP_5XX),
        (503, ErrorClass.HTTP_5XX),
        (302, ErrorClass.PARSE),
    ],
)
async def test_a_bad_status(session: aiohttp.ClientSession, server: str, status: int, error: ErrorClass) -> None:
    reason = "too much of it" + "!" * 5000
    script = Script(status=status, headers={"Location": "/", "Retry-After": "7"}, steps=[Step(write=reason)])
    got = await send(session, server, script)
    assert (got.error, got.http_status, got.retry_after) == (error, status, 7.0)
    assert got.error_text.startswith(f"HTTP {status}: too much of it!!")
    assert len(got.error_text) < 2100


async def test_a_retry_after_that_is_a_date(session: aiohttp.ClientSession, server: str) -> None:
    script = Script(status=429, headers={"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"})
    assert (await send(session, server, script)).retry_after is None


async def test_an_unknown_host(session: aiohttp.ClientSession) -> None:
    assert (await send(session, "http://no-such-host.invalid/")).error is ErrorClass.DNS


async def test_a_closed_port(session: aiohttp.ClientSession) -> None:
    got = await send(session, f"http://127.0.0.1:{free_port()}/")
    assert got.error is ErrorClass.CONNECT and "ClientConnectorError" in got.error_text
    assert got.done is not None and got.http_status is None


async def test_a_server_without_tls(session: aiohttp.ClientSession, server: str) -> None:
    assert (await send(session, server.replace("http:", "https:"))).error is ErrorClass.TLS


async def test_an_address_that_is_none(session: aiohttp.ClientSession) -> None:
    assert (await send(session, "http:///x")).error is ErrorClass.CLIENT_BUG


async def test_a_server_that_does_not_accept(session: aiohttp.ClientSession) -> None:
    """Its queue of connections is full: the kernel answers to no further one."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        got = await send(session, f"http://127.0.0.1:{address[1]}/", timeouts=Timeouts(connect=0.2))
        for filler in fillers:
            filler.close()
    assert got.error is ErrorClass.TIMEOUT_CONNECT


async def test_a_server_that_hangs_up(session: aiohttp.ClientSession) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        got = await send(session, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    assert got.error is ErrorClass.CONNECT


async def test_no_byte_in_time(session: aiohttp.ClientSession, server: str) -> None:
    limits = Timeouts(first=0.2, total=LONG)
    got = await send(session, server, Script(steps=[Step(wait=LONG, write=FRAME)]), timeouts=limits)
    assert got.error is ErrorClass.TIMEOUT_FIRST and got.pieces == []


async def test_the_first_byte_is_enough_for_its_limit(session: aiohttp.ClientSession, server: str) -> None:
    script = Script(steps=[Step(write=FRAME), Step(wait=1.0, write=FRAME)])
    got = await send(session, server, script, timeouts=Timeouts(first=0.8))
    assert got.error is ErrorClass.NONE


@pytest.mark.parametrize("limits", [Timeouts(first=LONG, total=1.5), Timeouts(total=1.5)])
@pytest.mark.parametrize("head", [FRAME, ""])
async def test_no_end_in_time(session: aiohttp.ClientSession, server: str, limits: Timeouts, head: str) -> None:
    steps = [Step(write=head)] if head else []
    got = await send(session, server, Script(steps=[*steps, Step(wait=LONG, write="x")]), timeouts=limits)
    assert got.error is ErrorClass.TIMEOUT_TOTAL
    assert b"".join(data for _, data in got.pieces).decode() == head


async def test_a_stream_that_stops_after_its_first_byte(session: aiohttp.ClientSession, server: str) -> None:
    script = Script(steps=[Step(write=FRAME), Step(wait=LONG)])
    got = await send(session, server, script, timeouts=Timeouts(first=0.8, total=1.2))
    assert got.error is ErrorClass.TIMEOUT_TOTAL


async def test_a_stream_that_breaks_off(session: aiohttp.ClientSession, server: str) -> None:
    got = await send(session, server, Script(steps=[Step(write=FRAME), Step(wait=0.05, write=FRAME, cut=True)]))
    assert got.error is ErrorClass.STREAM_TRUNCATED
    assert got.pieces[0][1].decode().startswith(FRAME)
    assert got.done is not None


async def test_a_request_that_is_given_up_keeps_what_came(session: aiohttp.ClientSession, server: str) -> None:
    cancel = asyncio.Event()
    script = Script(steps=[Step(write=FRAME), Step(wait=LONG)])
    running = asyncio.create_task(send(session, server, script, cancel=cancel))
    asyncio.get_running_loop().call_later(0.5, cancel.set)
    got = await running
    assert got.error is ErrorClass.CANCELLED
    assert [data.decode() for _, data in got.pieces] == [FRAME]


async def test_an_event_that_is_set_already(session: aiohttp.ClientSession, server: str) -> None:
    cancel = asyncio.Event()
    cancel.set()
    assert (await send(session, server, Script(steps=[Step(wait=LONG)]), cancel=cancel)).error is ErrorClass.CANCELLED


async def test_a_cancelled_task_ends(session: aiohttp.ClientSession, server: str) -> None:
    running = asyncio.create_task(send(session, server, Script(steps=[Step(wait=LONG)]), cancel=asyncio.Event()))
    asyncio.get_running_loop().call_later(0.1, running.cancel)
    with pytest.raises(asyncio.CancelledError):
        await running
