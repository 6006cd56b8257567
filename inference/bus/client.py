"""The web side of the bus: submit rows, receive their tokens, notice every kind of loss.

One reader task per process takes one message per engine step and fans it out to the calls that
wait. A call is a group of rows with one consumer (one HTTP request); its mailbox merges what comes
while the consumer is busy, so that a slow client costs memory for its tokens and nothing else.

Nothing here trusts a message to arrive. A row whose tokens have a gap, whose entry has vanished
from the request stream, or whose engine reports it lost, is submitted again with the tokens that
were already delivered: the engine resumes behind them, and the reader of the stream sees a pause.
"""

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from redis import asyncio as aioredis
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from inference.bus import affinity, control, keys, operations, paused
from inference.bus.call import BusError, Call, NoEngine, QueueFull, RowFailed
from inference.bus.messages import (
    Action,
    Cancel,
    EngineStatus,
    ErrorRecord,
    Finish,
    Generate,
    LoadModel,
    RowOutput,
    RunningRequest,
    StepReply,
)
from inference.bus.replies import entries_of
from inference.bus.scripts import NO_LIMIT, Scripts
from inference.bus.status import decode_statuses

log = logging.getLogger(__name__)

T = TypeVar("T")

ROWS_PER_SLICE = 128  # rows fanned out before other tasks of the event loop get a turn
SILENCE_SECONDS = 3.0  # a row without news for this long has its stream entry looked up
STATUS_SECONDS = 0.5  # how old a cached engine status may be
READ_SECONDS = 5  # what Redis may take beyond the time that a read asks it to wait
_RESUBMITTED_AT_ONCE = 256
_UNSENT_REPORTS = 32  # of errors; with more on their way, later ones are left out


class _Row:
    """One submission of one row: where it stands and when it was last heard of."""

    __slots__ = ("call", "entry", "heard", "index", "missing", "stream", "tokens")

    def __init__(self, call: Call, index: int, stream: str) -> None:
        self.call = call
        self.index = index
        self.stream = stream
        self.entry = b""
        self.tokens: list[int] = list(call.requests[index].generated)
        self.heard = time.monotonic()
        self.missing = False  # its entry was gone when last looked up

    @property
    def model(self) -> str:
        return self.call.requests[self.index].model

    @property
    def begun(self) -> bool:
        return bool(self.tokens)


class BusClient:
    """A process's connection to the engines. Bound to the event loop that first uses it."""

    def __init__(self, url: str, *, max_queue: int, grace_seconds: float) -> None:
        self.web = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.max_queue = max_queue
        self.grace_seconds = grace_seconds
        retry = Retry(ExponentialBackoff(cap=1.0, base=0.02), 3)
        pool = aioredis.BlockingConnectionPool.from_url(url, max_connections=16, timeout=10, retry=retry)
        self._redis = aioredis.Redis(connection_pool=pool)
        self._scripts = Scripts(self._redis)
        self._reader = aioredis.Redis.from_url(url, socket_timeout=READ_SECONDS)
        self._rows: dict[int, _Row] = {}
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._engines: list[EngineStatus] = []
        self._engines_read = 0.0
        self._reading_engines: asyncio.Task[None] | None = None
        self._read_until = b"0"  # the last reply that was read
        self._uncancelled: dict[int, _Row] = {}  # of which Redis could not be told
        self._seen: dict[str, float] = {}  # model -> when an engine that may serve it was last alive
        self._unsent_reports = 0
        self.closing = False
        self.finished: dict[str, RunningRequest] = {}  # the request of each caller that ended last

    # -- for the endpoints ----------------------------------------------------------------------

    @property
    def active_rows(self) -> int:
        return len(self._rows)

    async def engines(self) -> list[EngineStatus]:
        """The live engines, at most STATUS_SECONDS old. Raises NoEngine when Redis is away."""
        if time.monotonic() - self._engines_read > STATUS_SECONDS:
            if self._reading_engines is None or self._reading_engines.done():  # one look for all who come meanwhile
                self._reading_engines = asyncio.create_task(self._read_engines())
            await _reached(asyncio.shield(self._reading_engines))
        return self._engines

    async def submit(self, requests: Sequence[Generate], *, offline: bool = False, note: Any = None) -> Call:
        """Queue rows of one model. Raises NoEngine or QueueFull, in which case nothing was queued.

        The turn of a session goes to the engine that has its state, where one has.
        """
        self._start()
        model = requests[0].model
        await self._require_engine(model)
        self._seen[model] = time.monotonic()
        stream = keys.requests(model, offline=offline)
        try:
            if not offline:
                stream = await affinity.home_stream(self._redis, requests[0], self._engines) or stream
        except RedisError as error:
            raise NoEngine("the message bus is not reachable") from error
        call = Call(requests, note)
        try:
            rows = [_Row(call, index, stream) for index in range(len(requests))]
            await self._send(stream, rows, max_waiting=self.max_queue)
        except RedisError as error:
            self.cancel(call)
            raise NoEngine("the message bus is not reachable") from error
        except QueueFull:  # no engine has heard of the rows
            for number in call.numbers:
                del self._rows[number]
            raise
        except asyncio.CancelledError:
            self.cancel(call)
            raise
        return call

    def cancel(self, call: Call, index: int | None = None) -> None:
        """Forget a call, or one row of it, and have the engine free its slots. Returns at once."""
        rows = self._withdraw(call, index)
        call.open = 0 if index is None else call.open - len(rows)

    def end(self, call: Call, finish: Finish) -> dict[int, list[int]]:
        """End what still runs of a call as if the engine had. Returns those rows' tokens so far, by index."""
        rows = self._withdraw(call)
        for row in rows:
            call.put(row.index, RowOutput(row.index, len(row.tokens), finish=finish))
        return {row.index: row.tokens for row in rows}

    def note_end(self, call: Call) -> None:
        """Remember a call as its caller's last one."""
        request = control.describe(call)
        request.finished = time.time()
        self.finished[request.owner] = request

    def calls(self) -> list[Call]:
        """The calls of which a row still runs."""
        return list({id(row.call): row.call for row in self._rows.values()}.values())

    async def give_order(self, action: Action, request_id: str = "", owner: str | None = None) -> list[RunningRequest]:
        """See `inference.bus.control`. Raises NoEngine when Redis is away."""
        return await _reached(control.give_order(self._redis, action, request_id, owner))

    async def take_paused(self, request_id: str, owner: str | None = None) -> paused.PausedRequest | None:
        """See `inference.bus.paused`. Raises NoEngine when Redis is away."""
        return await _reached(paused.take(self._redis, request_id, owner))

    async def keep_paused(self, about: RunningRequest, note: Any, generated: dict[int, list[int]]) -> None:
        """Raises NoEngine when Redis is away."""
        await _reached(paused.keep(self._redis, about, note, generated))

    async def paused(self, owner: str | None = None) -> list[RunningRequest]:
        """See `inference.bus.paused`. Raises NoEngine when Redis is away."""
        return await _reached(paused.summaries(self._redis, owner))

    async def load_model(self, engines: Sequence[str], model: str) -> None:
        """Have the engines of these names change to another model. Raises NoEngine when Redis is away."""
        message = msgspec.msgpack.encode(LoadModel(list(engines), model))
        await _reached(self._redis.xadd(keys.CANCEL, {"load": message}, maxlen=keys.CANCEL_STREAM_LENGTH))

    async def forget_states(self, names: Sequence[bytes]) -> None:
        """Have every engine drop the states of these histories. Raises NoEngine when Redis is away."""
        message = msgspec.msgpack.encode(names)
        await _reached(self._redis.xadd(keys.CANCEL, {"forget": message}, maxlen=keys.CANCEL_STREAM_LENGTH))

    def report(self, error: ErrorRecord) -> None:
        """Put it among the last errors. Returns at once, and does without when Redis is away."""
        if self._unsent_reports < _UNSENT_REPORTS:
            self._unsent_reports += 1
            self._spawn(self._send_report(error))

    @property
    def redis(self) -> aioredis.Redis:
        """The connection, for what else the web processes share."""
        return self._redis

    async def close(self) -> None:
        self.closing = True  # a cancellation can get lost inside redis-py's retries
        tasks = [*self._tasks, *self._background, *filter(None, [self._reading_engines])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._redis.connection_pool.disconnect()  # a pool that was handed in is not closed with its client
        await self._reader.aclose()

    # -- submitting -----------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._tasks:
            work = (self._read_replies(), self._watch(), control.obey_orders(self, self._reader))
            self._tasks = [asyncio.create_task(task) for task in work]

    async def _require_engine(self, model: str) -> None:
        engines = [engine for engine in await self.engines() if not engine.model or engine.model.id == model]
        if any(engine.state == "ready" for engine in engines):
            return
        if any(engine.state == "loading" for engine in engines):
            raise NoEngine("the model is still loading")
        raise NoEngine("no engine is running for this model")

    async def _send(self, stream: str, rows: Sequence[_Row], *, max_waiting: int = NO_LIMIT) -> None:
        """Submit rows, all or none. Raises QueueFull, RedisError; they are known to the watch from the beginning."""
        messages = []
        for row in rows:
            number = next(self._numbers)
            self._rows[number] = row
            row.call.numbers.add(number)
            request = row.call.requests[row.index]
            numbered = msgspec.structs.replace(request, web=self.web, row=number, generated=row.tokens)
            messages.append(msgspec.msgpack.encode(numbered))
        await self._beat()  # before the rows: an engine drops those of a web process it cannot see
        name = f"{self.web}:{number}"
        entries = await self._scripts.submit(stream, name, messages, max_waiting=max_waiting)
        if not entries:
            raise QueueFull(f"the queue is full: {self.max_queue} rows are waiting")
        for row, entry in zip(rows, entries, strict=True):
            row.entry = entry

    def _withdraw(self, call: Call, index: int | None = None) -> list[_Row]:
        """Take a call's rows, or one of them, back from the engine."""
        rows = {
            number: self._rows.pop(number)
            for number in [*call.numbers]
            if number in self._rows and index in (None, self._rows[number].index)
        }
        if rows:
            self._spawn(self._send_cancel(rows))
        return list(rows.values())

    async def _send_cancel(self, rows: dict[int, _Row]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for row in rows.values():
            if row.entry:
                pipeline.xdel(row.stream, row.entry)
        message = msgspec.msgpack.encode(Cancel(self.web, list(rows)))
        pipeline.xadd(keys.CANCEL, {"m": message}, maxlen=keys.CANCEL_STREAM_LENGTH, approximate=True)
        try:
            await pipeline.execute()
        except RedisError as error:
            log.warning("could not cancel %d rows yet: %s", len(rows), error)
            self._uncancelled |= rows

    async def _send_report(self, error: ErrorRecord) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        operations.add_error(pipeline, error)
        try:
            await pipeline.execute()
        except RedisError as failure:
            log.warning("could not report an error: %s", failure)
        finally:
            self._unsent_reports -= 1

    def _resubmit(self, rows: Iterable[_Row], reason: str) -> None:
        for stream, group in itertools.groupby(rows, key=lambda row: affinity.shared_stream(row.stream, row.model)):
            again = list(group)
            log.warning("submitting %d rows again: %s", len(again), reason)
            fresh = []
            for row in again:
                copy = _Row(row.call, row.index, stream)
                copy.tokens = row.tokens
                fresh.append(copy)
            for start in range(0, len(fresh), _RESUBMITTED_AT_ONCE):
                self._spawn(self._send_again(stream, fresh[start : start + _RESUBMITTED_AT_ONCE]))

    async def _send_again(self, stream: str, rows: list[_Row]) -> None:
        rows = [row for row in rows if row.call.open]
        if not rows:
            return
        try:
            await self._send(stream, rows)
        except RedisError as error:  # rows that are not in the stream are found by the next watch
            log.warning("could not submit %d rows again yet: %s", len(rows), error)

    def _spawn(self, work) -> None:  # type: ignore[no-untyped-def]
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- receiving ------------------------------------------------------------------------------

    async def _read_replies(self) -> None:
        decoder = msgspec.msgpack.Decoder(StepReply)
        stream = keys.replies(self.web)
        while not self.closing:
            try:
                answer = await self._reader.xread({stream: self._read_until}, count=50, block=1000)
            except (RedisError, OSError) as error:
                log.warning("reading replies: %s", error)
                self._read_until = b"0"  # a Redis that came back empty may count from less; repeats are dropped
                await asyncio.sleep(0.2)
                continue
            for entry, fields in entries_of(answer):
                self._read_until = entry
                try:
                    await self._fan_out(decoder.decode(fields[b"m"]))
                except Exception:  # the rows of one message miss tokens, and are submitted again
                    log.exception("a reply could not be handed on")

    async def _fan_out(self, reply: StepReply) -> None:
        now = time.monotonic()
        for count, output in enumerate(reply.rows, start=1):
            row = self._rows.get(output.row)
            if row:
                row.heard, row.missing, row.call.engine = now, False, reply.engine
                self._deliver(row, output)
            if count % ROWS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _deliver(self, row: _Row, output: RowOutput) -> None:
        if output.position < len(row.tokens):
            return  # the engine repeated itself after a broken connection
        lost = output.finish in ("lost", "cancelled")  # this side forgets the rows it cancels itself
        if lost or output.position > len(row.tokens):
            del self._rows[output.row]
            self._spawn(self._send_cancel({output.row: row}))
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

    async def _watch(self) -> None:
        while not self.closing:
            await asyncio.sleep(keys.HEARTBEAT_SECONDS)
            try:
                await self._beat()
                await self._read_engines()
                await self._look_up_silent_rows()
                if self._uncancelled:
                    rows, self._uncancelled = self._uncancelled, {}
                    await self._send_cancel(rows)
            except (RedisError, OSError) as error:
                log.warning("watching the bus: %s", error)
            except Exception:  # without a watch nothing that is lost would ever be found
                log.exception("watching the bus")
            late = time.monotonic() - self.grace_seconds
            for model in [model for model, seen in self._seen.items() if seen < late]:
                del self._seen[model]
                self._fail_rows(model, NoEngine("the engine was lost and has not come back"))

    async def _beat(self) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.set(keys.web(self.web), 1, ex=keys.WEB_TTL_SECONDS)
        pipeline.expire(keys.replies(self.web), keys.REPLY_TTL_SECONDS)
        pipeline.xtrim(keys.replies(self.web), minid=self._read_until, approximate=True)  # type: ignore[arg-type]
        await pipeline.execute()

    async def _read_engines(self) -> None:
        names = sorted(name.decode() for name in await self._redis.smembers(keys.ENGINES))
        values = await self._redis.mget([keys.engine(name) for name in names]) if names else []
        self._engines = decode_statuses(values)
        self._engines_read = time.monotonic()
        for model in self._seen:
            if any(not engine.model or engine.model.id == model for engine in self._engines):
                self._seen[model] = self._engines_read

    async def _look_up_silent_rows(self) -> None:
        now = time.monotonic()
        silent = {number: row for number, row in self._rows.items() if now - row.heard > SILENCE_SECONDS}
        if not silent:
            return
        gone: dict[int, _Row] = {}
        exist = await self._scripts.exist([(row.stream, row.entry) for row in silent.values()])
        for (number, row), found in zip(silent.items(), exist, strict=True):
            if number not in self._rows:
                continue
            if affinity.is_stranded(row.stream, row.begun, self._engines):
                gone[number] = self._rows.pop(number)
            elif found:
                row.missing = False
            elif row.missing:  # twice in a row, so its last reply is not merely still unread
                gone[number] = self._rows.pop(number)
            else:
                row.missing = True
        if gone:
            self._spawn(self._send_cancel(gone))
        self._resubmit(gone.values(), "their requests, or the engine that they were for, have vanished")

    def _fail_rows(self, model: str, error: BusError) -> None:
        for call in self.calls():
            if call.requests[0].model == model:
                self._withdraw(call)
                call.fail(error)


async def _reached(work: Awaitable[T]) -> T:
    """The result of talking to Redis. Raises NoEngine when it is away."""
    try:
        return await work
    except RedisError as error:
        raise NoEngine("the message bus is not reachable") from error
