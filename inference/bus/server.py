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
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from inference.bus import keys, operations
from inference.bus.messages import EngineStatus, ErrorRecord, Generate, History, RowOutput, StepReply
from inference.bus.notices import Notices, RowKey
from inference.bus.replies import by_stream, entries_of

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOCK_MILLISECONDS = 200
RECONNECT_SECONDS = 0.2
UNSENT_STEPS = 10_000  # replies kept while Redis is away
CLAIM_SECONDS = 1.0  # how often dead engines and web processes are looked for
MESSAGE_LETTERS = 300  # kept of an error
TOMBSTONES = 10_000  # cancelled rows remembered, in case the request comes after its cancellation

LOST_POSITION = 2**31 - 1  # behind every delivered token: the position of a lost row is not known


class EngineBus:
    """Feeds one engine. `status` is called once a heartbeat, from another thread."""

    def __init__(self, url: str, *, status: Callable[[], EngineStatus], name: str | None = None) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._status = status
        self._url = url
        self._streams: list[str] = []
        self._entries: dict[RowKey, tuple[str, bytes]] = {}  # where each held row's request lies
        self._arrivals: deque[Generate] = deque()
        self._notices = Notices(self.name)
        self._tombstones: dict[RowKey, None] = {}
        self._last_cancel = b""
        self._outbox: deque[list[tuple[str, StepReply]]] = deque()
        self._done: deque[tuple[str, bytes]] = deque()
        self._capacity = 0
        self._absent_webs: set[str] = set()
        self._absent_engines: set[str] = set()
        self._stopping = threading.Event()
        self._news = threading.Condition()  # something for the step loop
        self._room = threading.Condition()  # free slots: the reader may take more
        self._unsent = threading.Condition()
        self._threads: list[threading.Thread] = []

    # -- for the step loop ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to beat and to send, once. Requests are read after `serve`."""
        if not self._threads:
            self._run(self._beat, self._send)

    def serve(self, model: str) -> None:
        """Begin to take requests for `model`, as far as `set_capacity` allows."""
        self._streams = [keys.own(self.name), keys.requests(model), keys.requests(model, offline=True)]
        self._run(self._read_requests, self._read_cancels)

    def set_capacity(self, slots: int) -> None:
        """How many more rows the engine wants now."""
        if slots != self._capacity:
            with self._room:
                self._capacity = slots
                self._room.notify()

    def arrivals(self) -> list[Generate]:
        """Requests that came since the last call, without those cancelled in the meantime."""
        live = []
        for request in _emptied(self._arrivals):
            if self._tombstones.pop((request.web, request.row), ()) is None:
                self._acknowledge([(request.web, request.row)])
            else:
                live.append(request)
        return live

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

    def bury(self, key: RowKey) -> None:
        """Remember the cancellation of a row the engine does not hold: its request may still come."""
        self._tombstones[key] = None
        while len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def publish(self, outputs: Iterable[tuple[str, RowOutput]]) -> None:
        """Send one step's outputs, given as (web process, output), and acknowledge rows that ended."""
        by_web: dict[str, list[RowOutput]] = {}
        for web, output in outputs:
            by_web.setdefault(web, []).append(output)
        if not by_web:
            return
        with self._unsent:
            self._outbox.append([(web, StepReply(self.name, rows)) for web, rows in by_web.items()])
            while len(self._outbox) > UNSENT_STEPS:
                self._outbox.popleft()
        self._acknowledge([(web, row.row) for web, rows in by_web.items() for row in rows if row.finish])

    def return_unread(self, requests: Iterable[Generate]) -> None:
        """Give back requests that came but were not begun: their web processes submit them again."""
        self.publish((request.web, RowOutput(request.row, LOST_POSITION, finish="lost")) for request in requests)

    def wait(self, timeout: float) -> None:
        """Sleep until there is something to do."""
        with self._news:
            if not (self._arrivals or self._notices.cancels):
                self._news.wait(timeout)

    def report(self, error: Exception) -> None:
        """Put it among the last errors: its kind and its first line."""
        first_line = str(error).partition("\n")[0][:MESSAGE_LETTERS]
        record = ErrorRecord(
            time=time.time(), where=f"engine {self.name}", message=f"{type(error).__name__}: {first_line}"
        )
        with self._connect() as connection:
            try:
                pipeline = connection.pipeline(transaction=False)
                operations.add_error(pipeline, record)
                pipeline.execute()
            except RedisError as failure:
                log.warning("could not report an error: %s", failure)

    def stop(self, *, flush_seconds: float = 5.0) -> None:
        """Send what is unsent, take the engine off the list, and end the threads; both within `flush_seconds`."""
        until = time.monotonic() + flush_seconds
        while (self._outbox or self._done) and time.monotonic() < until:
            time.sleep(0.01)
        self._stopping.set()
        for condition in (self._room, self._unsent):
            with condition:
                condition.notify_all()
        for thread in self._threads:
            thread.join(timeout=max(until - time.monotonic(), 0.0))
        with self._connect() as connection:
            try:
                connection.delete(keys.engine(self.name), keys.own(self.name))
                connection.srem(keys.ENGINES, self.name)
            except RedisError as error:
                log.warning("could not sign off: %s", error)

    # -- threads --------------------------------------------------------------------------------

    def _run(self, *loops: Callable[[redis.Redis], None]) -> None:
        for loop in loops:
            thread = threading.Thread(target=self._forever, args=(loop,), name=loop.__name__, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connect(self) -> redis.Redis:
        # No retries inside the client: each loop has its own, and none may hang in redis-py's.
        return redis.Redis.from_url(
            self._url, socket_timeout=5, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0), health_check_interval=0
        )

    def _forever(self, loop: Callable[[redis.Redis], None]) -> None:
        connection = self._connect()
        while not self._stopping.is_set():
            try:
                loop(connection)
            except ResponseError as error:
                if "NOGROUP" in str(error) or "no such key" in str(error):  # Redis came back empty
                    self._create_groups(connection)
                else:
                    log.exception("%s failed", loop.__name__)
                    self._stopping.wait(RECONNECT_SECONDS)
            except (RedisError, OSError) as error:
                log.warning("%s: %s", loop.__name__.strip("_"), error)
                self._stopping.wait(RECONNECT_SECONDS)
            except Exception:  # an engine that beats and no longer reads would be taken for a sound one
                log.exception("%s failed", loop.__name__.strip("_"))
                self._stopping.wait(RECONNECT_SECONDS)
        connection.close()

    def _create_groups(self, connection: redis.Redis) -> None:
        for stream in self._streams:
            try:
                connection.xgroup_create(stream, keys.GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def _notify(self) -> None:
        with self._news:
            self._news.notify()

    # -- requests in ----------------------------------------------------------------------------

    def _read_requests(self, connection: redis.Redis) -> None:
        self._create_groups(connection)
        while not self._stopping.is_set():
            with self._room:
                if self._capacity <= 0:
                    self._room.wait(1.0)
                    continue
                capacity = self._capacity
            taken = self._take(connection, capacity)
            if taken:
                with self._room:
                    self._capacity -= taken
                self._notify()

    def _take(self, connection: redis.Redis, capacity: int) -> int:
        """Rows for this engine first, then interactive ones; offline rows only where those leave room."""
        taken = 0
        for stream in self._streams:
            if taken < capacity:
                taken += self._read_group(connection, [stream], capacity - taken)
        return taken or self._read_group(connection, self._streams, capacity, BLOCK_MILLISECONDS)

    def _read_group(self, connection: redis.Redis, streams: Sequence[str], count: int, block: int | None = None) -> int:
        names: dict[str, str] = dict.fromkeys(streams, ">")
        answer = connection.xreadgroup(keys.GROUP, self.name, names, count=count, block=block)  # type: ignore[arg-type]
        taken = 0
        for stream, entries in by_stream(answer):
            for entry, fields in entries:
                request = self._read_request(stream, entry, fields)
                if request:
                    self._arrivals.append(request)
                    taken += 1
        return taken

    def _read_request(self, stream: str, entry: bytes, fields: dict[bytes, bytes]) -> Generate | None:
        """The request, whose entry is remembered. One that cannot be read, as of another version, is done with."""
        try:
            request = msgspec.msgpack.decode(fields[b"m"], type=Generate)
        except (msgspec.MsgspecError, KeyError) as error:
            log.error("a request cannot be read: %s", error)
            with self._unsent:
                self._done.append((stream, entry))
                self._unsent.notify()
            return None
        self._entries[request.web, request.row] = (stream, entry)
        return request

    def _read_cancels(self, connection: redis.Redis) -> None:
        newest = connection.xrevrange(keys.CANCEL, count=1)
        if not self._last_cancel:  # kept over reconnections, so that none is missed
            self._last_cancel = newest[0][0] if newest else b"0"
        elif not newest or _order(newest[0][0]) < _order(self._last_cancel):  # Redis came back empty
            self._last_cancel = b"0"
        while not self._stopping.is_set():
            answer = connection.xread({keys.CANCEL: self._last_cancel}, count=100, block=1000)
            for entry, fields in entries_of(answer):
                self._last_cancel = entry
                try:
                    self._notices.read(fields)
                except (msgspec.MsgspecError, KeyError) as error:  # of another version
                    log.error("a notice cannot be read: %s", error)
                self._notify()

    # -- replies out ----------------------------------------------------------------------------

    def _acknowledge(self, ended: Iterable[RowKey]) -> None:
        with self._unsent:
            for key in ended:
                entry = self._entries.pop(key, None)
                if entry:
                    self._done.append(entry)
            self._unsent.notify()

    def _send(self, connection: redis.Redis) -> None:
        while not self._stopping.is_set():
            with self._unsent:
                if not (self._outbox or self._done):
                    self._unsent.wait(1.0)
                steps, self._outbox = self._outbox, deque()
                done, self._done = self._done, deque()
            if not (steps or done):
                continue
            try:
                self._send_batch(connection, steps, done)
            except (RedisError, OSError):
                with self._unsent:  # it goes out again when Redis is back; the web drops repeats
                    self._outbox.extendleft(reversed(steps))
                    self._done.extendleft(reversed(done))
                raise

    @staticmethod
    def _send_batch(
        connection: redis.Redis, steps: Iterable[list[tuple[str, StepReply]]], done: Iterable[tuple[str, bytes]]
    ) -> None:
        pipeline = connection.pipeline(transaction=False)
        webs = set()
        for step in steps:
            for web, reply in step:
                webs.add(web)
                fields = {"m": msgspec.msgpack.encode(reply)}
                pipeline.xadd(keys.replies(web), fields, maxlen=keys.REPLY_STREAM_STEPS, approximate=True)  # type: ignore[arg-type]
        for web in webs:  # it may be dead, and its stream new
            pipeline.expire(keys.replies(web), keys.REPLY_TTL_SECONDS)
        for stream, entry in done:  # after the replies, so that a vanished entry means a reply was sent
            pipeline.xack(stream, keys.GROUP, entry)
            pipeline.xdel(stream, entry)
        for answer in pipeline.execute(raise_on_error=False):
            if isinstance(answer, ResponseError) and "NOGROUP" not in str(answer):  # an empty Redis has no group
                log.error("sending replies: %s", answer)

    # -- heartbeat, and the dead ----------------------------------------------------------------

    def _beat(self, connection: redis.Redis) -> None:
        looked = sampled = 0.0
        while not self._stopping.is_set():
            status = self._status()
            pipeline = connection.pipeline(transaction=False)
            pipeline.set(keys.engine(self.name), msgspec.msgpack.encode(status), ex=keys.ENGINE_TTL_SECONDS)
            pipeline.sadd(keys.ENGINES, self.name)
            pipeline.expire(keys.own(self.name), keys.OWN_STREAM_TTL_SECONDS)
            if self._streams and time.monotonic() - sampled > operations.SAMPLE_SECONDS:
                sampled = time.monotonic()
                operations.add_sample(pipeline, operations.sample_of(status))
            pipeline.execute()
            if self._streams and time.monotonic() - looked > CLAIM_SECONDS:
                looked = time.monotonic()
                self._report_lost_rows(connection)
                self._drop_rows_of_dead_webs(connection)
            self._stopping.wait(keys.HEARTBEAT_SECONDS)

    def _report_lost_rows(self, connection: redis.Redis) -> None:
        """Tell the web processes which rows died with their engine; they submit them again.

        An engine is dead whose heartbeat was missing twice in a row: when Redis has stood still, all are missing once.
        """
        before, self._absent_engines = self._absent_engines, set()
        for stream in self._streams:
            for consumer in connection.xinfo_consumers(stream, keys.GROUP):
                name = consumer["name"].decode()
                if name == self.name or connection.exists(keys.engine(name)):
                    continue
                self._absent_engines.add(name)
                if name not in before:
                    continue
                if consumer["pending"]:  # forget it only once its entries are gone, lest they stay for ever
                    self._report_lost_rows_of(connection, stream, name)
                    continue
                connection.xgroup_delconsumer(stream, keys.GROUP, name)
                connection.srem(keys.ENGINES, name)

    def _report_lost_rows_of(self, connection: redis.Redis, stream: str, consumer: str) -> None:
        lost = connection.xpending_range(stream, keys.GROUP, "-", "+", count=100_000, consumername=consumer)
        log.warning("engine %s is dead: %d rows are lost and reported", consumer, len(lost))
        outputs = []
        for pending in lost:
            entry = pending["message_id"]
            found = connection.xrange(stream, entry, entry)
            if not found:  # its web process has taken it back
                connection.xack(stream, keys.GROUP, entry)
            for _, fields in found:
                request = self._read_request(stream, entry, fields)
                if request:
                    outputs.append((request.web, RowOutput(request.row, LOST_POSITION, finish="lost")))
        self.publish(outputs)

    def _drop_rows_of_dead_webs(self, connection: redis.Redis) -> None:
        """Cancel the rows of web processes whose heartbeat was missing twice in a row."""
        held = list(self._entries)
        webs = sorted({web for web, _ in held})
        present = [connection.exists(keys.web(web)) for web in webs]
        absent = {web for web, found in zip(webs, present, strict=True) if not found}
        dead, self._absent_webs = absent & self._absent_webs, absent
        for key in held:
            if key[0] in dead:
                self._notices.cancels.append(key)
        if dead:
            log.warning("web processes are gone: %s", ", ".join(sorted(dead)))
            self._notify()


def _order(entry: bytes) -> tuple[int, ...]:
    """Entries' ids, as numbers that can be compared."""
    return tuple(map(int, entry.split(b"-")))


def _emptied(queue: deque[T]) -> list[T]:
    """What another thread has put into the queue so far."""
    return [queue.popleft() for _ in range(len(queue))]
