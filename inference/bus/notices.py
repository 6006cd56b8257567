"""What came by the stream that every engine reads: cancellations, models to load, states to forget or to load."""

from collections import deque
from collections.abc import Mapping

import msgspec

from inference.bus.messages import Cancel, History, LoadModel, WarmStates

RowKey = tuple[str, int]  # (web process, its number for the row)


class Notices:
    """Filled by one thread, emptied by another."""

    def __init__(self, engine: str) -> None:
        self.wanted_model = ""  # the one to change to, once somebody has asked for it
        self._engine = engine
        self.cancels: deque[RowKey] = deque()
        self.forgotten: deque[bytes] = deque()  # names of states that nobody can ask for any more
        self.wanted: deque[History] = deque()  # whose states somebody wants in memory

    def read(self, fields: Mapping[bytes, bytes]) -> None:
        """Take one entry of the stream."""
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
