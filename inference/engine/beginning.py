"""How one row gets the state of what came before its prompt."""

from concurrent.futures import Future

from inference.bus.messages import Generate
from inference.engine.state_cache import Entry, Loaded, State, StateCache
from inference.history import prefixes

CANNOT_LOAD = "the session's state cannot be loaded now"


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
        self._source: Entry | State | None = None
        self._named: list[tuple[int, bytes]] = []
        if not history.tokens and cache.keeps_prefixes and request.prompt_logprobs < 0:
            self._named = prefixes(history.digest, request.prompt, cache.prefix_block)

    @property
    def ready(self) -> bool:
        """Whether `take` can be called now; starts to load what is neither in L1 nor in L2."""
        if not self._history.tokens or self._cache.find(self._history.digest):
            return True
        if self._future is None:
            self._future = self._cache.load(self._history)
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

    def _take_prefix(self, feed: list[int]) -> tuple[list[int], list[tuple[int, bytes]]]:
        usable = [(length, digest) for length, digest in self._named if length < len(feed)]  # the last is fed anyway
        found = self._cache.longest_prefix(usable)
        if found:
            self.cached, self._source = found
            self._cache.counters.cached_tokens += self.cached
        rest = [(length - self.cached, digest) for length, digest in self._named if length > self.cached]
        return feed[self.cached :], rest
