"""States that may be wanted again, by the name of the token history that led to them.

Two levels for the heads of sessions, least recently used first out: L1 holds them in slots of the back
end that no row runs in, L2 on the host. What falls out of L2 is offered to a durable store, which can
also load a history that is in neither. Beside them is the prefix cache: states on the host, kept while
prompts are prefilled, under a byte budget; what falls out of it may go on to files.

A name says everything about a state (see `inference.history`), so an entry can be missing but never
wrong, and none ever has to be invalidated.

Not thread-safe but for `device_names` and `host_names`: the step loop owns it.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from inference.bus.messages import History
from inference.engine.backend import Backend
from inference.engine.coming_state import ComingState
from inference.history import BLOCK

State = Mapping[str, Any]  # as the back end exports it: tensors or arrays by name


@dataclass(slots=True, kw_only=True)
class SavedState:
    """A state for the durable store. `tokens` counts the whole history, `pending` included."""

    digest: bytes
    tokens: int
    pending: list[int]  # the end of the history, which the state has not been fed yet
    state: State


@dataclass(slots=True, kw_only=True)
class Loaded:
    """How to reach a history: from the cached state `base` ("" for none), or from `saved`, or from nothing."""

    base: bytes = b""
    saved: SavedState | None = None
    tokens: list[int] = field(default_factory=list)  # to be fed behind it


class DurableStates(Protocol):
    def load(self, history: History, cached: Collection[bytes]) -> "Future[Loaded]":
        """Start to load a history, given the names of the states that are at hand. The future may raise."""

    def save(self, saved: SavedState) -> None:
        """Take a state over. Must return at once."""


class PrefixStore(Protocol):
    """What keeps states of prefixes that have no place in memory. Nothing here may wait."""

    def __contains__(self, digest: bytes) -> bool: ...

    def load(self, digest: bytes) -> "Future[Any]":
        """The state, or None if it cannot be had after all."""

    def save(self, digest: bytes, state: State) -> None: ...


@dataclass(slots=True, eq=False)
class Entry:
    """One head. In L1 it has a slot, in L2 a state."""

    digest: bytes
    tokens: int
    pending: list[int]
    slot: int = -1
    state: State | None = None
    dirty: bool = True  # the durable store has not got it
    retired: bool = False  # a longer history has taken its place: the first to go


@dataclass(slots=True)
class CacheCounters:
    device_hits: int = 0
    host_hits: int = 0
    loads: int = 0  # heads that the durable store had to bring
    cached_tokens: int = 0  # tokens of prompts that did not have to be prefilled


class StateCache:
    def __init__(
        self,
        backend: Backend,
        *,
        slots: Sequence[int] = (),
        host_entries: int = 0,
        host_bytes: int = 0,
        prefix_bytes: int = 0,
        prefix_block: int = BLOCK,
        durable: DurableStates | None = None,
        prefix_store: PrefixStore | None = None,
    ) -> None:
        """`slots` are L1: slots of `backend` that nobody else uses. `host_*` bound L2, `prefix_bytes` the prefixes.

        States of prompts are kept at least `prefix_block` tokens apart: a chunk of a prompt ends there.
        """
        self.counters = CacheCounters()
        self.prefix_block = prefix_block
        self._backend = backend
        self._free = list(slots)[::-1]
        self._slots = len(slots)
        self._host_entries, self._host_bytes, self._prefix_bytes = host_entries, host_bytes, prefix_bytes
        self._durable = durable
        self._prefix_store = prefix_store
        self._device: dict[bytes, Entry] = {}  # the least recently used first
        self._host: dict[bytes, Entry] = {}
        self._host_used = self._prefix_used = 0
        self._prefixes: dict[bytes, State] = {}
        self._coming: WeakValueDictionary[bytes, object] = WeakValueDictionary()
        self._sweep: deque[Entry] = deque()
        self._warming: dict[bytes, tuple[History, Future[Loaded]]] = {}

    # -- for the heartbeat, which runs in another thread ----------------------------------------

    @property
    def slots(self) -> int:
        return self._slots

    def device_names(self) -> list[bytes]:
        return list(self._device)

    def host_names(self) -> list[bytes]:
        return list(self._host)

    # -- where a row begins ---------------------------------------------------------------------

    def find(self, digest: bytes) -> Entry | None:
        """A head in L1 or L2, which now counts as used."""
        for level in (self._device, self._host):
            if entry := level.pop(digest, None):
                level[digest] = entry
                entry.retired = False
                return entry
        return None

    def longest_prefix(self, named: Sequence[tuple[int, bytes]]) -> tuple[int, State] | None:
        """The longest of these (length, name) that is kept, and its state."""
        for length, digest in reversed(named):
            state = self._prefixes.pop(digest, None)
            if state is not None:
                self._prefixes[digest] = state
                return length, state
        return None

    def is_coming(self, named: Sequence[tuple[int, bytes]], asker: object) -> bool:
        """Whether another row is on its way to the state behind the longest of these (length, name) that is kept."""
        following = b""
        for _, digest in reversed(named):
            if digest in self._prefixes:
                break
            following = digest
        return self._coming.get(following) not in (None, asker)

    def announce(self, digests: Collection[bytes], row: object) -> None:
        """`row` will keep these prefixes. That ends when it is no longer referred to, whyever it has ended."""
        for digest in digests:
            self._coming[digest] = row

    def warm(self, history: History) -> None:
        """Start to bring a head to L2 that the durable store has got; `take_warmed` ends it."""
        if not self.find(history.digest):
            self._warming[history.digest] = history, self.load(history)

    def take_warmed(self) -> None:
        """Keep in L2 what has been loaded for that. A head that would have to be fed waits for its next turn."""
        for digest, (history, future) in list(self._warming.items()):
            if not future.done():
                continue
            del self._warming[digest]
            saved = None if future.exception() else future.result().saved
            if saved and saved.digest == digest and not self.find(digest):
                entry = Entry(digest, history.tokens, saved.pending, state=saved.state, dirty=False)
                self._keep_on_host(entry)

    def load(self, history: History) -> "Future[Loaded]":
        if self._durable is None:
            missing: Future[Loaded] = Future()
            missing.set_exception(LookupError("the history is not cached, and there is no store to load it from"))
            return missing
        self.counters.loads += 1
        return self._durable.load(history, frozenset(self._device) | frozenset(self._host))

    def place(self, source: Entry | State, slot: int) -> None:
        """Put a state into a row's slot."""
        if not isinstance(source, Entry):
            self._backend.import_state(slot, source)
        elif source.slot >= 0:
            self.counters.device_hits += 1
            self._backend.copy_state(source.slot, slot)
        else:
            assert source.state is not None, "an entry is in one of the levels"
            self.counters.host_hits += 1
            self._backend.import_state(slot, source.state)

    # -- where states come from -----------------------------------------------------------------

    def park(self, slot: int, digest: bytes, tokens: int, pending: list[int], *, behind: bytes = b"") -> None:
        """Keep the state in `slot` as the head of a history. The head `behind` which it grew is the next to go."""
        self._retire(behind)
        if self.find(digest):
            return
        entry = Entry(digest, tokens, pending)
        if not self._slots:
            entry.state = self._backend.export_state(slot)
            self._keep_on_host(entry)
            return
        if not self._free:
            self._free.append(self._demote())
        entry.slot = self._free.pop()
        self._backend.copy_state(slot, entry.slot)
        self._device[digest] = entry

    def checkpoint(self, slot: int, digest: bytes) -> None:
        """Keep the state in `slot` as that of a prompt's prefix."""
        if digest in self._prefixes:
            self._coming.pop(digest, None)
        else:
            self.keep_prefix(digest, self._backend.export_state(slot))

    def keep_prefix(self, digest: bytes, state: State) -> None:
        """Keep a state as that of a prompt's prefix, which may be empty behind an initial state."""
        self._coming.pop(digest, None)
        if digest in self._prefixes:
            return
        self._prefixes[digest] = state
        self._prefix_used += state_bytes(state)
        while self._prefix_used > self._prefix_bytes:
            oldest = next(iter(self._prefixes))
            state = self._prefixes.pop(oldest)
            self._prefix_used -= state_bytes(state)
            if self._prefix_store is not None:
                self._prefix_store.save(oldest, state)

    def stored_prefix(self, named: Sequence[tuple[int, bytes]]) -> "tuple[bytes, Future[Any]] | None":
        """Start to load the longest of these (length, name), if it is in a file and no longer one is in memory."""
        for _, digest in reversed(named):
            if digest in self._prefixes or self._prefix_store is None:
                return None
            if digest in self._prefix_store:
                return digest, self._prefix_store.load(digest)
        return None

    def store_prefixes(self) -> None:
        """Hand every prefix in memory to the store, the most recently used first."""
        if self._prefix_store is not None:
            for digest, state in reversed(self._prefixes.items()):
                self._prefix_store.save(digest, state)

    @property
    def keeps_prefixes(self) -> bool:
        return self._prefix_bytes > 0

    # -- downward -------------------------------------------------------------------------------

    def begin_sweep(self) -> None:
        """Note which heads the durable store has not got; `sweep_one` hands them over one by one."""
        entries = [*self._host.values(), *self._device.values()]
        self._sweep = deque(entry for entry in entries if entry.dirty and not entry.retired)

    def sweep_one(self) -> bool:
        """Hand one head of the sweep to the durable store. False when none was left."""
        while self._sweep:
            entry = self._sweep.popleft()
            # The same entry: its name may have come back meanwhile, and its slot may be another state's.
            held = self._device.get(entry.digest) or self._host.get(entry.digest)
            if entry.dirty and entry is held:
                self._save(entry)
                return True
        return False

    def forget(self, digests: Collection[bytes]) -> None:
        """Drop these heads without saving them: their sessions are gone."""
        for digest in digests:
            if entry := self._device.pop(digest, None):
                self._free.append(entry.slot)
            elif entry := self._host.pop(digest, None):
                self._host_used -= state_bytes(entry.state)

    def _retire(self, digest: bytes) -> None:
        """Make a head the next to go from its level."""
        if digest in self._device:
            self._device = {digest: self._device[digest], **self._device}
            self._device[digest].retired = True
        elif digest in self._host:
            self._host = {digest: self._host[digest], **self._host}
            self._host[digest].retired = True

    def _demote(self) -> int:
        """Empty the L1 slot that was not used for the longest time."""
        entry = self._device.pop(next(iter(self._device)))
        slot, retired = entry.slot, entry.retired
        if not retired:
            entry.state = self._backend.export_state(slot)
            entry.slot = -1
            self._keep_on_host(entry)
        return slot

    def _keep_on_host(self, entry: Entry) -> None:
        self._host[entry.digest] = entry
        self._host_used += state_bytes(entry.state)
        while len(self._host) > self._host_entries or self._host_used > self._host_bytes:
            oldest = self._host.pop(next(iter(self._host)))
            self._host_used -= state_bytes(oldest.state)
            if oldest.dirty and not oldest.retired:
                self._save(oldest)

    def _save(self, entry: Entry) -> None:
        entry.dirty = False
        if self._durable is None:
            return
        state = entry.state if entry.state is not None else self._backend.export_state(entry.slot)
        self._durable.save(SavedState(digest=entry.digest, tokens=entry.tokens, pending=entry.pending, state=state))


def state_bytes(state: State | None) -> int:
    """Does not wait for a state that is on its way."""
    if isinstance(state, ComingState):
        return state.nbytes
    return sum(part.nbytes for part in state.values()) if state else 0
