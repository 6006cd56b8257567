"""The rows of one web process that engines have, or should have.

Nothing here trusts a message to arrive. A row whose tokens have a gap, whose entry has vanished
from the request stream, or whose engine reports it lost, is submitted again with the tokens that
were already delivered: the engine resumes behind them, and the reader of the stream sees a pause.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
from redis import asyncio as aioredis
from redis.exceptions import RedisError

from inference.bus import affinity, keys
from inference.bus.call import Call, QueueFull, RowFailed
from inference.bus.messages import Cancel, EngineStatus, Finish, Generate, RowOutput, StepReply
from inference.bus.scripts import NO_LIMIT, Scripts

log = logging.getLogger(__name__)

ROWS_PER_SLICE = 128  # rows fanned out before other tasks of the event loop get a turn
ROWS_PER_SCRIPT = 256  # submitted again or looked up by one script, while which Redis answers nobody else
SILENCE_SECONDS = 3.0  # a row without news for this long has its stream entry looked up


class Row:
    """One submission of one row: where it stands and when it was last heard of."""

    __slots__ = ("call", "entry", "heard", "index", "missing", "number", "stream", "tokens")

    def __init__(self, number: int, call: Call, index: int, stream: str, tokens: list[int]) -> None:
        self.number = number  # the process's own, another one for each submission
        self.call = call
        self.index = index
        self.stream = stream
        self.entry = b""  # its request's; b"" until Redis has named it
        self.tokens = tokens  # delivered so far
        self.heard = time.monotonic()  # when it had news, or its entry was found
        self.missing = False  # its entry was gone when last looked up

    @property
    def request(self) -> Generate:
        return self.call.requests[self.index]


class Rows:
    """Submits rows and hands their news to the mailboxes of their calls. `spawn` runs what nobody waits for."""

    def __init__(
        self, connection: aioredis.Redis, web: str, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._redis = connection
        self._scripts = Scripts(connection)
        self._web = web
        self._spawn = spawn
        self._rows: dict[int, Row] = {}
        self._numbers = itertools.count(1)
        self._uncancelled: list[Row] = []  # of which Redis could not be told

    def __len__(self) -> int:
        return len(self._rows)

    def calls(self) -> list[Call]:
        """The calls of which a row still runs."""
        return list({id(row.call): row.call for row in self._rows.values()}.values())

    # -- submitting -----------------------------------------------------------------------------

    async def submit(self, call: Call, stream: str, *, max_waiting: int) -> None:
        """Submit all rows of a call, or none. Raises QueueFull, and RedisError: then Redis may have got them."""
        rows = [
            self._register(call, index, stream, list(request.generated)) for index, request in enumerate(call.requests)
        ]
        try:
            await self._send(stream, rows, max_waiting)
        except QueueFull:  # no engine has heard of the rows
            for row in rows:
                self._rows.pop(row.number, None)
            raise

    def _register(self, call: Call, index: int, stream: str, tokens: list[int]) -> Row:
        """A row that is known from now on: it can be withdrawn, and is looked up."""
        row = Row(next(self._numbers), call, index, stream, tokens)
        self._rows[row.number] = row
        call.numbers.add(row.number)
        return row

    async def _send(self, stream: str, rows: Sequence[Row], max_waiting: int = NO_LIMIT) -> None:
        messages = [
            msgspec.msgpack.encode(
                msgspec.structs.replace(row.request, web=self._web, row=row.number, generated=row.tokens)
            )
            for row in rows
        ]
        name = f"{self._web}:{rows[0].number}"
        entries = await self._scripts.submit(stream, name, messages, max_waiting=max_waiting)
        if not entries:
            raise QueueFull(f"the queue is full: {max_waiting} rows are waiting")
        for row, entry in zip(rows, entries, strict=True):
            row.entry = entry

    def _resubmit(self, lost: Iterable[Row], reason: str) -> None:
        for stream, group in itertools.groupby(lost, lambda row: affinity.shared_stream(row.stream, row.request.model)):
            rows = [self._register(row.call, row.index, stream, row.tokens) for row in group]
            log.warning("submitting %d rows again: %s", len(rows), reason)
            for some in _parts(rows):
                self._spawn(self._send_again(stream, some))

    async def _send_again(self, stream: str, rows: Sequence[Row]) -> None:
        rows = [row for row in rows if row.number in self._rows]  # the others were withdrawn
        if not rows:
            return
        try:
            await self._send(stream, rows)
        except RedisError as error:  # rows that are not in the stream are found by the next look
            log.warning("could not submit %d rows again yet: %s", len(rows), error)

    # -- taking back ----------------------------------------------------------------------------

    def withdraw(self, call: Call, index: int | None = None) -> list[Row]:
        """Take a call's rows, or one of them, back from the engine. Returns those that had not ended."""
        rows = [
            self._rows.pop(number)
            for number in [*call.numbers]
            if number in self._rows and index in (None, self._rows[number].index)
        ]
        if rows:
            self._spawn(self._send_cancel(rows))
        return rows

    def end(self, rows: Iterable[Row], finish: Finish) -> None:
        """End rows that were withdrawn as if the engine had."""
        for row in rows:
            row.call.put(row.index, RowOutput(row.index, len(row.tokens), finish=finish))

    def go_on(self, rows: Iterable[Row]) -> None:
        """Have rows that were withdrawn go on, but for those that were cancelled in the meantime."""
        self._resubmit([row for row in rows if row.index in row.call.running], "they were withdrawn for nothing")

    async def cancel_again(self) -> None:
        """Tell the engines what Redis could not be told before."""
        if self._uncancelled:
            rows, self._uncancelled = self._uncancelled, []
            await self._send_cancel(rows)

    async def _send_cancel(self, rows: list[Row]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for row in rows:
            if row.entry:
                pipeline.xdel(row.stream, row.entry)
        message = msgspec.msgpack.encode(Cancel(self._web, [row.number for row in rows]))
        pipeline.xadd(keys.CANCEL, {"m": message}, maxlen=keys.CANCEL_STREAM_LENGTH, approximate=True)
        try:
            await pipeline.execute()
        except RedisError as error:
            log.warning("could not cancel %d rows yet: %s", len(rows), error)
            self._uncancelled += rows

    # -- receiving ------------------------------------------------------------------------------

    async def take(self, reply: StepReply) -> None:
        """Hand an engine's news to the calls."""
        now = time.monotonic()
        for count, output in enumerate(reply.rows, start=1):
            row = self._rows.get(output.row)
            if row:
                row.heard, row.missing, row.call.engine = now, False, reply.engine
                self._deliver(row, output)
            if count % ROWS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _deliver(self, row: Row, output: RowOutput) -> None:
        if output.position < len(row.tokens):
            return  # the engine repeated itself after a broken connection
        lost = output.finish in ("lost", "cancelled")  # this side forgets the rows it cancels itself
        if lost or output.position > len(row.tokens):
            del self._rows[output.row]
            self._spawn(self._send_cancel([row]))
            self._resubmit([row], "their engine lost them" if lost else "tokens went missing")
            return
        row.tokens += output.tokens
        if output.finish:
            del self._rows[output.row]
        if output.finish in ("error", "expired"):
            row.call.fail(RowFailed(output.error or f"the engine {output.finish} this request"))
        else:
            row.call.put(row.index, output)

    # -- watching -------------------------------------------------------------------------------

    async def look_up_silent(self, engines: Sequence[EngineStatus]) -> None:
        """Submit again what no engine will run: its entry has vanished, or its engine has. Raises RedisError."""
        now = time.monotonic()
        silent = [row for row in self._rows.values() if now - row.heard > SILENCE_SECONDS]
        gone: list[Row] = []
        for some in _parts(silent):
            exist = await self._scripts.exist([(row.stream, row.entry) for row in some])
            for row, found in zip(some, exist, strict=True):
                if row.number not in self._rows:
                    continue
                if affinity.is_stranded(row.stream, bool(row.tokens), engines):
                    gone.append(self._rows.pop(row.number))
                elif found:
                    row.missing, row.heard = False, now
                elif row.missing:  # twice in a row, so its last reply is not merely still unread
                    gone.append(self._rows.pop(row.number))
                else:
                    row.missing = True
        if gone:
            self._spawn(self._send_cancel(gone))
            self._resubmit(gone, "their requests, or the engine that they were for, have vanished")


def _parts(rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
    return (rows[start : start + ROWS_PER_SCRIPT] for start in range(0, len(rows), ROWS_PER_SCRIPT))
