"""How one row gets the state of what came before its prompt.

Rows whose prompts begin alike wait for the first of them, which keeps the states of their common
beginning: however many come at once, it is fed once.
"""

from concurrent.futures import Future
from typing import Any

from inference.bus.messages import CANNOT_LOAD, Generate
from inference.engine.state_cache import Entry, Loaded, State, StateCache
from inference.history import prefixes


class Beginning:
    """How one row gets the state of its history. Nothing is held before `take`."""

    def __init__(self, cache: StateCache, request: Generate) -> None:
        assert request.history is not None, "without a history a row begins at zero"
        history = request.history
        self.cached = 0  # prompt tokens whose state was there
        self.error = ""
        self._cache = cache
        self._request = request
        self._history = history
        self._future: Future[Loaded] | None = None
        self._stored: tuple[bytes, Future[Any]] | None = None
        self._looked = False  # for a stored prefix
        self._source: Entry | State | None = None
        self._named: list[tuple[int, bytes]] = []
        if not history.tokens and history.start:
            self._named = [(0, history.digest)]
        if not history.tokens and history.shared and cache.keeps_prefixes and request.prompt_logprobs < 0:
            self._named += prefixes(history.digest, request.prompt, cache.prefix_block)
        fed = len(request.prompt) + len(request.generated)
        self._usable = [(length, digest) for length, digest in self._named if length < fed]  # the last is fed anyway

    @property
    def ready(self) -> bool:
        """Whether `take` should be called now; starts to load what is not in memory."""
        if not self._history.tokens and (self._cache.is_coming(self._usable, self) or not self._has_read_stored()):
            return False
        if self._is_at_hand():
            return True
        if self._future is None:
            self._future = self._cache.load(self._history)
            if not self._history.tokens:
                self._cache.announce([self._history.digest], self)
        if not self._future.done():
            return False
        if self._future.exception():
            self.error = CANNOT_LOAD
        elif (base := self._future.result().base) and not self._cache.find(base):
            self._future = None  # evicted in the meantime: look again
            return False
        return True

    def take(self, feed: list[int]) -> tuple[list[int], list[tuple[int, bytes]]]:
        """Choose the state to begin with, given what the row would feed from nothing.

        Returns what it has to feed instead, and the (length, name) of those beginnings of that whose
        state is to be kept.
        """
        if not self._history.tokens:
            return self._take_prefix(feed)
        entry = self._cache.find(self._history.digest)
        if entry:
            self._source = entry
            return entry.pending + feed, []
        if self.error:
            return feed, []
        assert self._future is not None, "a history that is not cached was loaded"
        loaded = self._future.result()
        before = loaded.tokens
        if loaded.base:
            base = self._cache.find(loaded.base)
            assert base is not None, "ready said that it is there"
            self._source, before = base, base.pending + before
        elif loaded.saved:
            self._source, before = loaded.saved.state, loaded.saved.pending + before
        return before + feed, [(len(before), self._history.digest)] if loaded.tokens else []

    def place(self, slot: int) -> None:
        if self._source is not None:
            self._cache.place(self._source, slot)
            self._source = None

    def keep(self, slot: int, digest: bytes) -> None:
        """Keep the state at one of the lengths that `take` named."""
        if self._history.tokens:
            self._cache.park(slot, digest, self._history.tokens, [])
        else:
            self._cache.checkpoint(slot, digest)

    def _has_read_stored(self) -> bool:
        """Whether a prefix that is kept in a file alone, if there is one, has been read to memory."""
        if not self._looked:
            self._looked = True
            self._stored = self._cache.stored_prefix(self._usable)
        if self._stored is None:
            return True
        digest, future = self._stored
        if not future.done():
            return False
        self._stored = None
        if not future.exception() and (state := future.result()):
            self._cache.keep_prefix(digest, state)
        return True

    def _is_at_hand(self) -> bool:
        if self._history.tokens:
            return self._cache.find(self._history.digest) is not None
        return not self._history.start or self._cache.longest_prefix(self._usable) is not None

    def _take_prefix(self, feed: list[int]) -> tuple[list[int], list[tuple[int, bytes]]]:
        before: list[int] = []
        if found := self._cache.longest_prefix(self._usable):
            self.cached, self._source = found
            self._cache.counters.cached_tokens += self.cached
        elif self._history.start:
            if self.error:
                return feed, []
            self._source = self._loaded_start()
        if not self.cached:
            before = self._history.pending
        rest = [(len(before) + length - self.cached, digest) for length, digest in self._named if length > self.cached]
        self._cache.announce([digest for _, digest in rest], self)
        return before + feed[self.cached :], rest

    def _loaded_start(self) -> State:
        assert self._future is not None, "an initial state that is not cached was loaded"
        saved = self._future.result().saved
        assert saved is not None, "an initial state is loaded or the future raises"
        self._cache.keep_prefix(self._history.digest, saved.state)
        return saved.state
