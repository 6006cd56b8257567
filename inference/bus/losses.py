"""What died with rows under way, as an engine sees it: other engines, and web processes.

Whoever was missing twice in a row is dead: when Redis has stood still, all heartbeats are missing once.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import redis

from inference.bus import keys
from inference.bus.messages import RowOutput
from inference.bus.notices import RowKey
from inference.bus.outbox import Outbox

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # how often
LOST_POSITION = 2**31 - 1  # behind every delivered token: the position of a lost row is not known
MOST_LOST = 100_000  # rows of one engine that are reported at once


class Losses:
    """`cancel` is called with the rows of dead web processes."""

    def __init__(self, engine: str, outbox: Outbox, cancel: Callable[[list[RowKey]], None]) -> None:
        self._engine = engine
        self._outbox = outbox
        self._cancel = cancel
        self._absent_webs: set[str] = set()
        self._absent_engines: set[str] = set()

    def look(self, connection: redis.Redis, streams: Sequence[str]) -> None:
        """Look at those whose rows are in `streams`, or are held here."""
        self._forget_dead_engines(connection)
        self._report_lost_rows(connection, streams)
        self._drop_rows_of_dead_webs(connection)

    def _forget_dead_engines(self, connection: redis.Redis) -> None:
        """Take them off the list, also those that died before they served. One that is alive is back with its beat."""
        names = [name.decode() for name in connection.smembers(keys.ENGINES)]
        if dead := _missing(connection, names, keys.engine):
            connection.srem(keys.ENGINES, *dead)

    def _report_lost_rows(self, connection: redis.Redis, streams: Sequence[str]) -> None:
        """Tell the web processes which rows died with their engine; they submit them again."""
        pending = {
            (stream, consumer["name"].decode()): consumer["pending"]
            for stream in streams
            for consumer in connection.xinfo_consumers(stream, keys.GROUP)
        }
        absent = _missing(connection, {name for _, name in pending} - {self._engine}, keys.engine)
        dead, self._absent_engines = absent & self._absent_engines, absent
        for (stream, name), rows in pending.items():
            if name in dead and rows:  # forget it only once its entries are gone, lest they stay for ever
                self._report_lost_rows_of(connection, stream, name)
            elif name in dead:
                connection.xgroup_delconsumer(stream, keys.GROUP, name)

    def _report_lost_rows_of(self, connection: redis.Redis, stream: str, consumer: str) -> None:
        lost = connection.xpending_range(stream, keys.GROUP, "-", "+", count=MOST_LOST, consumername=consumer)
        log.warning("engine %s is dead: %d rows are lost and reported", consumer, len(lost))
        outputs = []
        for pending in lost:
            entry = pending["message_id"]
            found = connection.xrange(stream, entry, entry)
            if not found:  # its web process has taken it back
                connection.xack(stream, keys.GROUP, entry)
            for _, fields in found:
                if request := self._outbox.hold(stream, entry, fields):
                    outputs.append((request.web, RowOutput(request.row, LOST_POSITION, finish="lost")))
        self._outbox.publish(outputs)

    def _drop_rows_of_dead_webs(self, connection: redis.Redis) -> None:
        held = self._outbox.held()
        absent = _missing(connection, {web for web, _ in held}, keys.web)
        dead, self._absent_webs = absent & self._absent_webs, absent
        if dead:
            log.warning("web processes are gone: %s", ", ".join(sorted(dead)))
            self._cancel([key for key in held if key[0] in dead])


def _missing(connection: redis.Redis, names: Iterable[str], key: Callable[[str], str]) -> set[str]:
    """Those without a heartbeat, whose `key` is not there."""
    pipeline = connection.pipeline(transaction=False)
    names = list(names)
    for name in names:
        pipeline.exists(key(name))
    return {name for name, found in zip(names, pipeline.execute(), strict=True) if not found}
