"""What comes by the stream that every engine reads: cancellations, models to load, states to forget or to load."""

import logging
from collections import deque
from collections.abc import Mapping

import msgspec
import redis

from inference.bus import keys
from inference.bus.messages import Cancel, History, LoadModel, WarmStates
from inference.bus.replies import entries_of

log = logging.getLogger(__name__)

RowKey = tuple[str, int]  # (web process, its number for the row)

BLOCK_MILLISECONDS = 1000


class Notices:
    """Filled by one thread, emptied by another."""

    def __init__(self, engine: str) -> None:
        self.wanted_model = ""  # the one to change to, once somebody has asked for it
        self.cancels: deque[RowKey] = deque()
        self.forgotten: deque[bytes] = deque()  # names of states that nobody can ask for any more
        self.wanted: deque[History] = deque()  # whose states somebody wants in memory
        self._engine = engine
        self._last = b""  # the entry that was read last

    def listen(self, connection: redis.Redis) -> None:
        """Have what comes from the first call on heard, though it may be read later."""
        if not self._last:
            newest = connection.xrevrange(keys.CANCEL, count=1)
            self._last = newest[0][0] if newest else b"0"

    def resume(self, connection: redis.Redis) -> None:
        """To be called before `read` on a new connection: a Redis that came back empty counts anew."""
        self.listen(connection)
        newest = connection.xrevrange(keys.CANCEL, count=1)
        if not newest or _order(newest[0][0]) < _order(self._last):
            self._last = b"0"

    def read(self, connection: redis.Redis) -> bool:
        """Take what has come, and wait a little for it. Returns whether there was anything."""
        answer = connection.xread({keys.CANCEL: self._last}, count=100, block=BLOCK_MILLISECONDS)
        for entry, fields in entries_of(answer):
            self._last = entry
            try:
                self._take(fields)
            except (msgspec.MsgspecError, KeyError) as error:  # of another version
                log.error("a notice cannot be read: %s", error)
        return bool(answer)

    def _take(self, fields: Mapping[bytes, bytes]) -> None:
        decode = msgspec.msgpack.decode
        if data := fields.get(b"load"):
            load = decode(data, type=LoadModel)
            if self._engine in load.engines:
                self.wanted_model = load.model
        elif data := fields.get(b"warm"):
            warm = decode(data, type=WarmStates)
            if self._engine == warm.engine:
                self.wanted.extend(warm.histories)
        elif data := fields.get(b"forget"):
            self.forgotten.extend(decode(data, type=list[bytes]))
        else:
            cancel = decode(fields[b"m"], type=Cancel)
            self.cancels.extend((cancel.web, row) for row in cancel.rows)


def _order(entry: bytes) -> tuple[int, ...]:
    """Entries' ids, as numbers that can be compared."""
    return tuple(map(int, entry.split(b"-")))
