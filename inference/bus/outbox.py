"""What an engine has to send: replies, and that requests are done with.

The entry of a request is the engine's from the moment it is read until its row has ended, see `inference.bus.keys`.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable

import msgspec
import redis
from redis.exceptions import RedisError, ResponseError

from inference.bus import keys
from inference.bus.messages import Generate, RowOutput, StepReply
from inference.bus.notices import RowKey

log = logging.getLogger(__name__)

UNSENT_STEPS = 10_000  # replies kept while Redis is away

Entry = tuple[str, bytes]  # (stream, id)
Step = list[tuple[str, StepReply]]  # of each web process that has rows in it


class Outbox:
    """Filled by the step loop and the threads that read requests, emptied by `send`."""

    def __init__(self, engine: str, stopping: threading.Event) -> None:
        self._engine = engine
        self._stopping = stopping
        self._held: dict[RowKey, Entry] = {}
        self._steps: deque[Step] = deque()
        self._done: deque[Entry] = deque()
        self._sending: list[Entry] | None = None  # the entries of the batch that is on its way; None: nothing is
        self._changed = threading.Condition()

    @property
    def empty(self) -> bool:
        """Whether Redis has got everything."""
        with self._changed:
            return not (self._steps or self._done) and self._sending is None

    def hold(self, stream: str, entry: bytes, fields: dict[bytes, bytes]) -> Generate | None:
        """The request in an entry, which is held from now on. None if it is held already, or cannot be read."""
        try:
            request = msgspec.msgpack.decode(fields[b"m"], type=Generate)
        except (msgspec.MsgspecError, KeyError) as error:  # of another version
            log.error("a request cannot be read: %s", error)
            with self._changed:
                self._done.append((stream, entry))
                self._changed.notify()
            return None
        with self._changed:
            if self._held.get((request.web, request.row)) == (stream, entry):
                return None  # a Redis that has lost its last second gives it once more
            self._held[request.web, request.row] = (stream, entry)
        return request

    def held(self) -> list[RowKey]:
        with self._changed:
            return list(self._held)

    def entries(self) -> set[Entry]:
        """Those held, and those done with of which Redis may not know it."""
        with self._changed:
            return {*self._held.values(), *self._done, *(self._sending or ())}

    def publish(self, outputs: Iterable[tuple[str, RowOutput]]) -> None:
        """Send one step's outputs, given as (web process, output), and let go of the rows that ended."""
        by_web: dict[str, list[RowOutput]] = {}
        step: Step = []
        ended = []
        for web, output in outputs:
            if output.prompt_logprobs:  # hundreds of bytes a token: Redis takes half a gigabyte in one message
                step.append((web, StepReply(self._engine, [output])))
            else:
                by_web.setdefault(web, []).append(output)
            if output.finish:
                ended.append((web, output.row))
        step += [(web, StepReply(self._engine, rows)) for web, rows in by_web.items()]
        if not step:
            return
        with self._changed:
            self._steps.append(step)
            while len(self._steps) > UNSENT_STEPS:
                self._steps.popleft()
            self._let_go(ended)

    def let_go(self, ended: Iterable[RowKey]) -> None:
        """Be done with rows that nobody waits for."""
        with self._changed:
            self._let_go(ended)

    def _let_go(self, ended: Iterable[RowKey]) -> None:
        self._done.extend(entry for key in ended if (entry := self._held.pop(key, None)))
        self._changed.notify()

    def wake(self) -> None:
        """Have `send` look whether it is to stop."""
        with self._changed:
            self._changed.notify_all()

    def send(self, connection: redis.Redis) -> None:
        """Send what there is, until it is to stop."""
        while not self._stopping.is_set():
            with self._changed:
                if not (self._steps or self._done):
                    self._changed.wait(1.0)
                steps, self._steps = self._steps, deque()
                done, self._done = self._done, deque()
                self._sending = [*done] if steps or done else None
            if self._sending is None:
                continue
            try:
                _send_batch(connection, steps, done)
            except (RedisError, OSError):
                with self._changed:  # it goes out again when Redis is back; the web drops repeats
                    self._steps.extendleft(reversed(steps))
                    self._done.extendleft(reversed(done))
                raise
            finally:
                with self._changed:
                    self._sending = None


def _send_batch(connection: redis.Redis, steps: Iterable[Step], done: Iterable[Entry]) -> None:
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
