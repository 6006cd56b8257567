"""The engine's way to the database: loads histories and writes snapshots, beside the step loop.

Snapshots are written behind, in batches, by one thread. A state is worth a snapshot only as the head
of a session, so one that came before its turn was committed waits a little for that, and is dropped
when it is not: nothing depends on a snapshot.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import Error, connections

from inference.bus.messages import History, ModelInfo
from inference.engine.state_bytes import StateFormat
from inference.engine.state_cache import Loaded, SavedState, state_bytes
from sessions.states import StoredState, find_route, store_snapshots

log = logging.getLogger(__name__)

LOADERS = 4
BATCH = 16  # states in one transaction
COMMIT_SECONDS = 3.0  # a state that is nobody's head this long after it came will not become one
LAST_COMMIT_SECONDS = 1.0  # the same when the engine stops
LOOK_SECONDS = 0.1
RETRY_SECONDS = 1.0  # after the database refused


class StateKeeper:
    """See `inference.engine.state_cache.DurableStates`. `most_bytes` bounds the states that wait to be written."""

    def __init__(
        self,
        model: ModelInfo,
        example: Mapping[str, Any],
        *,
        most_bytes: int,
        report: Callable[[Exception], None],
    ) -> None:
        """`example` is any state of the back end, for its format. `report` is told of errors that nobody expects."""
        self.written = 0
        self._report = report
        self._fingerprint = model.fingerprint
        self._format = StateFormat(example)
        initial = StateFormat({name: tensor.float() for name, tensor in example.items()})
        self._formats = {initial.dtype: initial, self._format.dtype: self._format}
        self._most_bytes = most_bytes
        self._waiting: dict[bytes, tuple[SavedState, float]] = {}  # the oldest first, with when it came
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="load")
        self._writer = threading.Thread(target=self._write, name="snapshots", daemon=True)
        self._writer.start()

    # -- for the step loop ----------------------------------------------------------------------

    def load(self, history: History, cached: Collection[bytes]) -> "Future[Loaded]":
        return self._loaders.submit(self._load, history, cached)

    def save(self, saved: SavedState) -> None:
        with self._changed:
            if saved.digest in self._waiting:  # the newer one counts, in memory too
                self._drop(saved.digest)
            self._waiting[saved.digest] = saved, time.monotonic()
            self._bytes += state_bytes(saved.state)
            while self._bytes > self._most_bytes and len(self._waiting) > 1:
                self._drop(next(iter(self._waiting)))
                log.warning("a snapshot was left out: the database is slower than the states come")
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so long, and end the threads."""
        until = time.monotonic() + seconds
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._waiting and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
            if self._waiting:
                log.warning("%d snapshots were not written: these states will be rebuilt", len(self._waiting))
                self._waiting.clear()
                self._changed.notify_all()
        self._writer.join(RETRY_SECONDS)
        self._loaders.shutdown(wait=False, cancel_futures=True)

    # -- threads --------------------------------------------------------------------------------

    def _load(self, history: History, cached: Collection[bytes]) -> Loaded:
        try:
            route = find_route(history, cached, fingerprint=self._fingerprint, dtype=self._format.dtype)
        except Exception:
            log.exception("the history of session %d cannot be loaded", history.session)
            raise
        finally:
            connections.close_all()
        stored, saved = route.stored, None
        if stored:
            state = self._formats[stored.dtype].unpack(stored.data)
            saved = SavedState(digest=stored.digest, tokens=stored.tokens, pending=stored.pending, state=state)
        return Loaded(base=route.base, saved=saved, tokens=route.tokens)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._closing):
                    self._changed.wait()
                if not self._waiting:
                    return
                batch = [saved for saved, _ in list(self._waiting.values())[:BATCH]]
            try:
                self._write_batch(batch)
            except Exception as error:  # the next batch must be written all the same
                log.exception("%d snapshots are left out: these states will be rebuilt", len(batch))
                self._forget(batch)
                self._report(error)

    def _write_batch(self, batch: list[SavedState]) -> None:
        try:
            done = self._store(batch)
        except Error as error:
            log.warning("snapshots cannot be written now: %s", error)
            time.sleep(RETRY_SECONDS)
        else:
            self._settle(batch, done)
            if not done:
                time.sleep(LOOK_SECONDS)
        finally:
            connections.close_all()

    def _store(self, batch: list[SavedState]) -> set[bytes]:
        states = [
            StoredState(
                digest=saved.digest,
                tokens=saved.tokens,
                pending=saved.pending,
                dtype=self._format.dtype,
                data=self._format.pack(saved.state),
            )
            for saved in batch
        ]
        return store_snapshots(states, fingerprint=self._fingerprint)

    def _settle(self, batch: list[SavedState], done: set[bytes]) -> None:
        """Forget what was written or has waited in vain; the rest of the batch goes to the end."""
        late = time.monotonic() - (LAST_COMMIT_SECONDS if self._closing else COMMIT_SECONDS)
        with self._changed:
            for saved in batch:
                entry = self._waiting.get(saved.digest)
                if entry is None or entry[0] is not saved:
                    continue  # it was dropped, or came again
                if saved.digest in done or entry[1] < late:
                    self._drop(saved.digest)
                else:
                    self._waiting[saved.digest] = self._waiting.pop(saved.digest)
            self.written += len(done)
            self._changed.notify_all()

    def _forget(self, batch: list[SavedState]) -> None:
        with self._changed:
            for saved in batch:
                entry = self._waiting.get(saved.digest)
                if entry is not None and entry[0] is saved:
                    self._drop(saved.digest)
            self._changed.notify_all()

    def _drop(self, digest: bytes) -> None:
        saved, _ = self._waiting.pop(digest)
        self._bytes -= state_bytes(saved.state)
