"""The engine side of the bus: requests in, replies out, and nothing that can block the step loop.

Four threads talk to Redis; the step loop only looks into their queues. A Redis that is away delays
messages and loses none that matter: what cannot be sent is kept, and what is lost all the same is
noticed by the web process that waits for it (see `inference.bus.keys`).
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import redis
from redis.exceptions import RedisError

from inference.bus import keys, operations
from inference.bus.intake import Intake
from inference.bus.losses import LOOK_SECONDS, LOST_POSITION, Losses
from inference.bus.messages import EngineStatus, ErrorRecord, Generate, History, RowOutput
from inference.bus.notices import Notices, RowKey
from inference.bus.outbox import Outbox
from inference.bus.threads import RedisThreads

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_SECONDS = 1.0  # what a read of requests that is under way may take when the intake is closed
MESSAGE_LETTERS = 300  # kept of an error


class EngineBus:
    """Feeds one engine. `status` is called once a heartbeat, from another thread."""

    def __init__(self, url: str, *, status: Callable[[], EngineStatus], name: str | None = None) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._status = status
        self._threads = RedisThreads(url)
        self._news = threading.Event()  # something has come for the step loop
        self._notices = Notices(self.name)
        self._outbox = Outbox(self.name, self._threads.stopping)
        self._intake = Intake(self.name, self._outbox, self._news.set)
        self._losses = Losses(self.name, self._outbox, self._cancel)
        self._beating: threading.Thread | None = None
        self._reading: threading.Thread | None = None

    # -- for the step loop ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to beat and to send, once. Requests are read after `serve`."""
        if not self._beating:
            self._beating = self._threads.run(self._beat)
            self._threads.run(self._outbox.send)

    def serve(self, model: str) -> None:
        """Begin to take requests for `model`, as far as `set_capacity` allows."""
        self._intake.serve(model)
        self._threads.run(self._read_notices)

    def set_capacity(self, rows: int) -> None:
        """How many more rows the engine has room for, those included that have come and it has not seen yet."""
        self._intake.set_capacity(rows)

    def arrivals(self) -> list[Generate]:
        """Requests that came since the last call, without those cancelled in the meantime."""
        return self._intake.arrivals()

    def close_intake(self) -> list[Generate]:
        """Take no more requests. Returns those that came and were not begun."""
        self._intake.close()
        if self._reading:
            self._reading.join(CLOSE_SECONDS)
        return self._intake.arrivals()

    def bury(self, key: RowKey) -> None:
        """Remember the cancellation of a row the engine does not hold: its request may still come."""
        self._intake.bury(key)

    def cancellations(self) -> list[RowKey]:
        return _emptied(self._notices.cancels)

    def forgotten(self) -> list[bytes]:
        """Names of states that nobody can ask for any more."""
        return _emptied(self._notices.forgotten)

    def wanted(self) -> list[History]:
        """Histories whose states somebody wants in memory."""
        return _emptied(self._notices.wanted)

    @property
    def wanted_model(self) -> str:
        """The one to change to, "" until somebody asks for it."""
        return self._notices.wanted_model

    def publish(self, outputs: Iterable[tuple[str, RowOutput]]) -> None:
        """Send one step's outputs, given as (web process, output), and acknowledge rows that ended."""
        self._outbox.publish(outputs)

    def return_unread(self, requests: Iterable[Generate]) -> None:
        """Give back requests that came but were not begun: their web processes submit them again."""
        self.publish((request.web, RowOutput(request.row, LOST_POSITION, finish="lost")) for request in requests)

    def wait(self, timeout: float) -> None:
        """Sleep until something has come since the last wait."""
        self._news.wait(timeout)
        self._news.clear()

    def report(self, error: Exception) -> None:
        """Put it among the last errors: its kind and its first line."""
        first_line = str(error).partition("\n")[0][:MESSAGE_LETTERS]
        record = ErrorRecord(
            time=time.time(), where=f"engine {self.name}", message=f"{type(error).__name__}: {first_line}"
        )
        with self._threads.connect() as connection:
            try:
                pipeline = connection.pipeline(transaction=False)
                operations.add_error(pipeline, record)
                pipeline.execute()
            except RedisError as failure:
                log.warning("could not report an error: %s", failure)

    def stop(self, *, flush_seconds: float = 5.0) -> None:
        """Send what is unsent, take the engine off the list, and end the threads; both within `flush_seconds`."""
        until = time.monotonic() + flush_seconds
        self._intake.close()
        while not self._outbox.empty and time.monotonic() < until:
            time.sleep(0.01)
        self._threads.stopping.set()
        self._outbox.wake()
        self._threads.join(until)
        with self._threads.connect() as connection:
            try:
                connection.delete(keys.engine(self.name), keys.own(self.name))
                connection.srem(keys.ENGINES, self.name)
            except RedisError as error:
                log.warning("could not sign off: %s", error)

    # -- in threads -----------------------------------------------------------------------------

    def _read_notices(self, connection: redis.Redis) -> None:
        self._notices.resume(connection)
        if not self._reading:  # not before: the cancellation of a request that was read must be heard
            self._reading = self._threads.run(self._intake.read)
        while not self._threads.stopping.is_set():
            if self._notices.read(connection):
                self._news.set()

    def _beat(self, connection: redis.Redis) -> None:
        self._notices.listen(connection)  # before anyone can know of this engine, and give it an order
        looked = sampled = 0.0
        streams: list[str] = []  # that can be looked at
        while not self._threads.stopping.is_set():
            if streams != self._intake.streams:  # it has begun to serve, or Redis came back empty
                self._intake.create_groups(connection)
                streams = self._intake.streams
            status = self._status()
            pipeline = connection.pipeline(transaction=False)
            pipeline.set(keys.engine(self.name), msgspec.msgpack.encode(status), ex=keys.ENGINE_TTL_SECONDS)
            pipeline.sadd(keys.ENGINES, self.name)
            pipeline.expire(keys.own(self.name), keys.OWN_STREAM_TTL_SECONDS)
            now = time.monotonic()
            if streams and now - sampled > operations.SAMPLE_SECONDS:
                sampled = now
                operations.add_sample(pipeline, operations.sample_of(status))
            pipeline.execute()
            if streams and now - looked > LOOK_SECONDS:
                looked = now
                self._losses.look(connection, streams)
            self._threads.stopping.wait(keys.HEARTBEAT_SECONDS)

    def _cancel(self, rows: list[RowKey]) -> None:
        self._notices.cancels.extend(rows)
        self._news.set()


def _emptied(queue: deque[T]) -> list[T]:
    """What another thread has put into the queue so far."""
    return [queue.popleft() for _ in range(len(queue))]
