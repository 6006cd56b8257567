"""The web side of the bus: submit rows, receive their tokens, notice every kind of loss.

One reader task per process takes one message per engine step and fans it out to the calls that
wait. A call is a group of rows with one consumer (one HTTP request); its mailbox merges what comes
while the consumer is busy, so that a slow client costs memory for its tokens and nothing else.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError

from inference.bus import affinity, control, keys, operations, paused
from inference.bus.call import Call, NoEngine, QueueFull
from inference.bus.live_engines import LiveEngines
from inference.bus.messages import (
    Action,
    EngineStatus,
    ErrorRecord,
    Generate,
    LoadModel,
    RunningRequest,
    StepReply,
)
from inference.bus.replies import entries_of
from inference.bus.rows import Rows

log = logging.getLogger(__name__)

T = TypeVar("T")

AWAY = "the message bus is not reachable"
READ_SECONDS = 5  # what Redis may take beyond the time that a read asks it to wait
# Commands are short, and a burst waits less for one of these than for more of them to be opened. What blocks in Redis
# is the reader's.
CONNECTIONS = 4
_UNSENT_REPORTS = 32  # of errors; with more on their way, later ones are left out


class BusClient:
    """A process's connection to the engines. Bound to the event loop that first uses it."""

    def __init__(self, url: str, *, max_queue: int, grace_seconds: float) -> None:
        self.web = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.max_queue = max_queue
        self.closing = False
        self.finished: dict[str, RunningRequest] = {}  # the request of each caller that ended last
        retry = Retry(ExponentialBackoff(cap=1.0, base=0.02), 3)
        pool = aioredis.BlockingConnectionPool.from_url(
            url, max_connections=CONNECTIONS, timeout=10, retry=retry, driver_info=None
        )
        self.redis = aioredis.Redis(connection_pool=pool)  # for what else the web processes share, too
        self._reader = aioredis.Redis.from_url(url, socket_timeout=READ_SECONDS)
        self._engines = LiveEngines(self.redis, grace_seconds)
        self._rows = Rows(self.redis, self.web, self._spawn)
        self._read_until = b"0"  # the last reply that was read
        self._tasks: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._unsent_reports = 0

    # -- requests -------------------------------------------------------------------------------

    @property
    def active_rows(self) -> int:
        return len(self._rows)

    async def engines(self) -> list[EngineStatus]:
        """The live engines. Raises NoEngine when Redis is away."""
        return await self._engines.read()

    async def submit(self, requests: Sequence[Generate], *, offline: bool = False, note: Any = None) -> Call:
        """Queue rows of one model. Raises NoEngine or QueueFull, in which case nothing was queued.

        The turn of a session goes to the engine that has its state, where one has.
        """
        self._start()
        model = requests[0].model
        await self._engines.require(model)
        stream = keys.requests(model, offline=offline)
        if not offline:
            stream = await _reached(affinity.home_stream(self.redis, requests[0], self._engines.known)) or stream
        call = Call(requests, note)
        try:
            await _reached(self._rows.submit(call, stream, max_waiting=self.max_queue))
        except QueueFull:
            raise
        except BaseException:  # an engine may have got them
            self.cancel(call)
            raise
        return call

    def cancel(self, call: Call, index: int | None = None) -> None:
        """Forget a call, or one row of it, and have the engine free its slots. Returns at once."""
        self._rows.withdraw(call, index)
        call.running -= call.running if index is None else {index}

    def stop(self, call: Call) -> None:
        """End what still runs of a call as if the engine had."""
        self._rows.end(self._rows.withdraw(call), "stop")

    async def pause(self, call: Call, about: RunningRequest) -> None:
        """End what still runs of a call, once it is kept and may be resumed. It goes on if anything is raised."""
        rows = self._rows.withdraw(call)
        try:
            await paused.keep(self.redis, about, call.note, {row.index: row.tokens for row in rows})
        except Exception:
            self._rows.go_on(rows)
            raise
        self._rows.end(rows, "paused")

    def calls(self) -> list[Call]:
        """The calls of which a row still runs."""
        return self._rows.calls()

    def note_end(self, call: Call) -> None:
        """Remember a call as its caller's last one."""
        request = control.describe(call)
        request.finished = time.time()
        self.finished[request.owner] = request

    # -- orders ---------------------------------------------------------------------------------

    async def give_order(self, action: Action, request_id: str = "", owner: str | None = None) -> list[RunningRequest]:
        """See `inference.bus.control`. Raises NoEngine when Redis is away."""
        return await _reached(control.give_order(self._reader, action, request_id, owner))

    @asynccontextmanager
    async def resuming(self, request_id: str, owner: str | None = None) -> AsyncIterator[paused.PausedRequest | None]:
        """A paused request of `owner`, or anyone's without one; None if there is none, or somebody resumes it now.

        It is forgotten if the block ends well, and stays paused if not. Raises NoEngine when Redis is away.
        """
        claim = await _reached(paused.claim(self.redis, request_id, owner))
        if claim is None:
            yield None
            return
        try:
            yield claim.request
        except BaseException:
            self._spawn(_settle(claim.give_back()))
            raise
        self._spawn(_settle(claim.forget()))

    async def paused(self, owner: str | None = None) -> list[RunningRequest]:
        """See `inference.bus.paused`. Raises NoEngine when Redis is away."""
        return await _reached(paused.summaries(self.redis, owner))

    async def load_model(self, engines: Sequence[str], model: str) -> None:
        """Have the engines of these names change to another model. Raises NoEngine when Redis is away."""
        await self._notify("load", LoadModel(list(engines), model))

    async def forget_states(self, names: Sequence[bytes]) -> None:
        """Have every engine drop the states of these histories. Raises NoEngine when Redis is away."""
        await self._notify("forget", names)

    async def _notify(self, kind: str, message: Any) -> None:
        fields = {kind: msgspec.msgpack.encode(message)}
        await _reached(self.redis.xadd(keys.CANCEL, fields, maxlen=keys.CANCEL_STREAM_LENGTH))

    # -- errors ---------------------------------------------------------------------------------

    def report(self, error: ErrorRecord) -> None:
        """Put it among the last errors. Returns at once, and does without when Redis is away."""
        if self._unsent_reports < _UNSENT_REPORTS:
            self._unsent_reports += 1
            self._spawn(self._send_report(error))

    async def _send_report(self, error: ErrorRecord) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        operations.add_error(pipeline, error)
        try:
            await pipeline.execute()
        except RedisError as failure:
            log.warning("could not report an error: %s", failure)
        finally:
            self._unsent_reports -= 1

    # -- tasks ----------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._tasks:
            work = (self._read_replies(), self._watch(), control.obey_orders(self, self._reader))
            self._tasks = [asyncio.create_task(task) for task in work]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        self.closing = True  # a cancellation can get lost inside redis-py's retries
        tasks = [*self._tasks, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engines.close()
        await self.redis.connection_pool.disconnect()  # a pool that was handed in is not closed with its client
        await self._reader.aclose()

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
                    await self._rows.take(decoder.decode(fields[b"m"]))
                except Exception:  # the rows of one message miss tokens, and are submitted again
                    log.exception("a reply could not be handed on")

    async def _watch(self) -> None:
        while not self.closing:
            try:
                await self._beat()
                await self._engines.look()
                await self._rows.look_up_silent(self._engines.known)
                await self._rows.cancel_again()
            except (RedisError, OSError) as error:
                log.warning("watching the bus: %s", error)
            except Exception:  # without a watch nothing that is lost would ever be found
                log.exception("watching the bus")
            for model in self._engines.give_up():
                self._fail_rows(model)
            await asyncio.sleep(keys.HEARTBEAT_SECONDS)

    async def _beat(self) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.set(keys.web(self.web), 1, ex=keys.WEB_TTL_SECONDS)
        pipeline.expire(keys.replies(self.web), keys.REPLY_TTL_SECONDS)
        pipeline.xtrim(keys.replies(self.web), minid=self._read_until, approximate=True)  # type: ignore[arg-type]
        await pipeline.execute()

    def _fail_rows(self, model: str) -> None:
        for call in self.calls():
            if call.requests[0].model == model:
                self._rows.withdraw(call)
                call.fail(NoEngine("the engine was lost and has not come back"))


async def _settle(claim: Awaitable[None]) -> None:
    try:
        await claim
    except RedisError as error:  # it lapses
        log.warning("a request that was paused may be resumed again: %s", error)


async def _reached(work: Awaitable[T]) -> T:
    """The result of talking to Redis. Raises NoEngine when it is away."""
    try:
        return await work
    except RedisError as error:
        raise NoEngine(AWAY) from error
