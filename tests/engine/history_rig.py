"""An engine whose rows begin behind a history, and sessions on it.

The model here draws a digest of everything it was fed, so that one token missing, doubled or of
another row changes all that follows.
"""

import zlib
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from inference.bus.messages import Generate, History, RowOutput
from inference.engine.coming_state import ComingState
from inference.engine.engine import Engine
from inference.engine.state_cache import Loaded, SavedState, StateCache
from inference.history import extend, root
from tests.engine.counting_backend import CountingBackend

ROOT = root("model", "owner")
OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlapped"])


class DigestBackend(CountingBackend):
    def next_token(self, fed: list[int]) -> int:
        return zlib.crc32(np.array(fed, dtype=np.uint32).tobytes()) % 60_000 + 1


class LazyBackend(DigestBackend):
    """Its states come to the host by a thread, or never."""

    copies_fail = False

    def __init__(self, slots: int, *, overlap: bool = False) -> None:
        super().__init__(slots, overlap=overlap)
        self._thread = ThreadPoolExecutor(1)

    def export_state(self, slot: int) -> ComingState:
        state = super().export_state(slot)
        return ComingState(state, state["fed"].nbytes, self._thread.submit(self._arrived, state))

    def _arrived(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.copies_fail:
            raise OSError("lost on the way")
        return state


class MemoryStore:
    """A durable store in memory. Loads are answered when the test says so, or at once."""

    def __init__(self) -> None:
        self.saved: dict[bytes, SavedState] = {}
        self.turns: dict[bytes, tuple[bytes, list[int]]] = {}  # digest -> the one before, and the turn's ids
        self.waiting: list[tuple[Future, Loaded]] = []
        self.at_once = True

    def load(self, history: History, cached: Collection[bytes]) -> Future:
        digest, tokens = history.digest, []
        while digest != ROOT and digest not in cached and digest not in self.saved:
            digest, ids = self.turns[digest]
            tokens = ids + tokens
        base = digest if digest in cached else b""
        saved = None if base else self.saved.get(digest)
        future: Future = Future()
        self.waiting.append((future, Loaded(base=base, saved=saved, tokens=tokens)))
        if self.at_once:
            self.answer()
        return future

    def answer(self) -> None:
        for future, loaded in self.waiting:
            future.set_result(loaded)
        self.waiting = []

    def save(self, saved: SavedState) -> None:
        self.saved[saved.digest] = saved


class Rig:
    """An engine with a state cache, and sessions on it."""

    def __init__(
        self,
        *,
        overlap: bool = False,
        parked: int = 2,
        host: int = 2,
        prefix_bytes: int = 0,
        backend: type[DigestBackend] = DigestBackend,
    ) -> None:
        self.backend = backend(2 + parked, overlap=overlap)
        self.store = MemoryStore()
        self.states = StateCache(
            self.backend,
            slots=range(2, 2 + parked),
            host_entries=host,
            host_bytes=2**30,
            prefix_bytes=prefix_bytes,
            durable=self.store,
        )
        self.engine = Engine(self.backend, step_tokens=64, states=self.states)
        self._rows = 0

    @property
    def fed(self) -> int:
        """Prompt tokens that were prefilled so far."""
        return self.engine.counters.prompt_tokens

    def submit(self, prompt: list[int], history: History | None = None, **more) -> int:
        self._rows += 1
        history = history or History(digest=ROOT)
        more = {"keep": True, "max_tokens": 5, "stop_ids": []} | more
        self.engine.submit(
            Generate(web="web", row=self._rows, model="counting", prompt=prompt, history=history, **more)
        )
        return self._rows

    def finish(self) -> dict[int, list[RowOutput]]:
        outputs: dict[int, list[RowOutput]] = {}
        for _ in range(1000):
            for _web, output in self.engine.step():
                outputs.setdefault(output.row, []).append(output)
            if not self.engine.has_work:
                return outputs
        raise AssertionError("still at work")

    def ask(self, prompt: list[int], history: History | None = None, **more) -> list[int]:
        row = self.submit(prompt, history, **more)
        outputs = self.finish()[row]
        assert outputs[-1].finish in ("stop", "length"), outputs[-1].error
        return [token for output in outputs for token in output.tokens]

    def turn(self, history: History, prompt: list[int], **more) -> tuple[History, list[int]]:
        """One turn, committed: the history with it, and the reply."""
        reply = self.ask(prompt, history, **more)
        return self.commit(history, prompt + reply), reply

    def commit(self, history: History, ids: list[int]) -> History:
        digest = extend(history.digest, ids)
        self.store.turns[digest] = history.digest, ids
        return History(digest=digest, tokens=history.tokens + len(ids), session=1, turn=history.turn + 1)


def alone(tokens: list[int], count: int = 5) -> list[int]:
    """What the model draws behind these tokens when nothing is cached."""
    drawn = []
    for _ in range(count):
        drawn.append(DigestBackend(1).next_token(tokens + drawn))
    return drawn


def play(rig: Rig, sessions: int, turns: int) -> None:
    """Turns of several sessions, each session's after all the others'; asserts every reply."""
    heads = [History(digest=ROOT)] * sessions
    logs: list[list[int]] = [[] for _ in heads]
    for number in range(turns):
        for session in range(sessions):
            prompt = [100 * session + number + 1] * 3
            heads[session], reply = rig.turn(heads[session], prompt)
            assert reply == alone(logs[session] + prompt)
            logs[session] += prompt + reply
