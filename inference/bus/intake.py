"""Requests on their way to an engine's step loop: as many as it has room for, and each once."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

import redis
from redis.exceptions import ResponseError

from inference.bus import keys
from inference.bus.messages import Generate
from inference.bus.notices import RowKey
from inference.bus.outbox import Entry, Outbox
from inference.bus.replies import by_stream

BLOCK_MILLISECONDS = 200
TOMBSTONES = 10_000  # cancelled rows remembered, in case the request comes after its cancellation


class Intake:
    """Filled by `read`, emptied by the step loop. `notify` is called when something has come."""

    def __init__(self, engine: str, outbox: Outbox, notify: Callable[[], None]) -> None:
        self.streams: list[str] = []
        self._engine = engine
        self._outbox = outbox
        self._notify = notify
        self._arrivals: deque[Generate] = deque()
        self._tombstones: dict[RowKey, None] = {}
        self._wanted = 0  # how many more rows to take
        self._closed = False
        self._changed = threading.Condition()  # `_wanted`, or `_closed`

    def serve(self, model: str) -> None:
        """Read the requests for `model`: those for this engine alone first, and offline ones last."""
        self.streams = [keys.own(self._engine), keys.requests(model), keys.requests(model, offline=True)]

    def set_capacity(self, rows: int) -> None:
        """How many more rows the engine has room for, those included that have come and it has not seen yet."""
        with self._changed:
            wanted = rows - len(self._arrivals)
            if wanted != self._wanted:
                self._wanted = wanted
                self._changed.notify()

    def arrivals(self) -> list[Generate]:
        """Requests that came since the last call, without those cancelled in the meantime."""
        live = []
        for _ in range(len(self._arrivals)):
            request = self._arrivals.popleft()
            if self._tombstones.pop((request.web, request.row), ()) is None:
                self._outbox.let_go([(request.web, request.row)])
            else:
                live.append(request)
        return live

    def bury(self, key: RowKey) -> None:
        """Remember the cancellation of a row the engine does not hold: its request may still come."""
        self._tombstones[key] = None
        while len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def close(self) -> None:
        """Have `read` end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    # -- in a thread ----------------------------------------------------------------------------

    def read(self, connection: redis.Redis) -> None:
        """Take requests until closed."""
        self.create_groups(connection)
        self._take_again(connection)
        while not self._closed:
            with self._changed:
                if self._wanted <= 0:
                    self._changed.wait(1.0)
                    continue
                wanted = self._wanted
            self._take(connection, wanted)

    def create_groups(self, connection: redis.Redis) -> None:
        """Make what is read from; a Redis that came back empty has lost it."""
        for stream in self.streams:
            try:
                connection.xgroup_create(stream, keys.GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def _take_again(self, connection: redis.Redis) -> None:
        """Take what Redis gave to this engine by an answer that got lost: nobody else would get it."""
        known = self._outbox.entries()  # before the read: what is sent meanwhile must not seem to be new
        self._accept(connection.xreadgroup(keys.GROUP, self._engine, dict.fromkeys(self.streams, "0")), known)

    def _take(self, connection: redis.Redis, wanted: int) -> None:
        """Rows for this engine first, then interactive ones; offline rows only where those leave room."""
        taken = 0
        for stream in self.streams:
            if taken < wanted:
                taken += self._read_new(connection, [stream], wanted - taken)
        if not taken:
            self._read_new(connection, self.streams, wanted, BLOCK_MILLISECONDS)

    def _read_new(self, connection: redis.Redis, streams: Sequence[str], count: int, block: int | None = None) -> int:
        names: dict[str, str] = dict.fromkeys(streams, ">")
        return self._accept(connection.xreadgroup(keys.GROUP, self._engine, names, count=count, block=block))  # type: ignore[arg-type]

    def _accept(self, answer: object, known: Collection[Entry] = ()) -> int:
        """Hand the requests of an XREADGROUP answer to the step loop. Returns how many."""
        requests = [
            request
            for stream, entries in by_stream(answer)
            for entry, fields in entries
            if (stream, entry) not in known and (request := self._outbox.hold(stream, entry, fields))
        ]
        if requests:
            with self._changed:
                self._arrivals.extend(requests)
                self._wanted -= len(requests)
            self._notify()
        return len(requests)
