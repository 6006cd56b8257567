"""How long sessions take: to come back from each level, to be written, and what that costs the rows that run."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from inference.bus.messages import Generate, History, Sampling
from inference.engine.backend import Backend
from inference.engine.engine import Engine
from inference.history import root
from rwkvsite.env import Env
from sessions.actions import delete
from sessions.levels import Levels
from sessions.models import Session, Snapshot
from sessions.states import StoredState, store_snapshots
from sessions.store import NewTurn, commit_turn, read_head

OWNER = "benchmark"
PROMPT_TOKENS = 16
WARM_STEPS = 20
ENDLESS = 10**9
PATIENCE_SECONDS = 120.0
STALL_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Times:
    """Of one thing that was done many times, in milliseconds."""

    what: str
    p50: float
    p99: float
    count: int

    @classmethod
    def of(cls, what: str, seconds: list[float]) -> "Times":
        ordered = sorted(1000 * one for one in seconds)
        last = len(ordered) - 1
        return cls(what, ordered[last // 2], ordered[round(0.99 * last)], len(ordered))


class SessionBench:
    """Runs on `backend`, of whose slots `parked` are L1. Its sessions are deleted afterwards."""

    def __init__(self, backend: Backend, *, parked: int, count: int) -> None:
        self._backend = backend
        self._parked = parked
        self._count = count
        self._numbers = itertools.count()
        self._root = History(digest=root(backend.model.fingerprint, OWNER))

    def run(self, rows: int) -> Iterator[Times]:
        try:
            yield self._first_tokens("first token without a session", entries=self._count, continued=False)
            yield self._first_tokens("first token, state in L1", parked=self._parked)
            yield self._first_tokens("first token, state in L2", entries=self._count)
            yield self._first_tokens("first token, state in the database")
            yield self._writes()
            yield from self._steps(rows)
        finally:
            delete(list(Session.objects.filter(owner=OWNER)))

    def _first_tokens(self, what: str, *, parked: int = 0, entries: int = 0, continued: bool = True) -> Times:
        """From a turn's arrival in the engine to its first token; the prompt is one token."""
        with self._engine(parked, entries) as (engine, _):
            heads = [self._turn(engine) for _ in range(min(self._count, parked or self._count))]
            if not (parked or entries):
                self._wait_for_snapshots([head.session for head in heads])
            seconds = []
            for head in heads:
                begun = time.perf_counter()
                _run(engine, self._request([7], head if continued else self._root))
                seconds.append(time.perf_counter() - begun)
        return Times.of(what, seconds)

    def _writes(self) -> Times:
        """The transaction for one state, as the writer thread has it."""
        seconds = []
        for snapshot in Snapshot.objects.select_related("data").filter(session__owner=OWNER)[: self._count]:
            state = StoredState(
                digest=bytes.fromhex(snapshot.digest),
                tokens=snapshot.token_count,
                pending=[],
                dtype=snapshot.dtype,
                data=bytes(snapshot.data.blob),
            )
            begun = time.perf_counter()
            store_snapshots([state], fingerprint=snapshot.model_fingerprint)
            seconds.append(time.perf_counter() - begun)
        return Times.of("writing a snapshot", seconds)

    def _steps(self, rows: int) -> Iterator[Times]:
        """Steps of decoding rows, without and with a state handed to the writer before each."""
        with self._engine(self._parked, self._count) as (engine, levels):
            for _ in range(self._parked):
                self._turn(engine)
            for _ in range(rows):
                engine.submit(self._request([7], self._root, max_tokens=ENDLESS))
            for _ in range(WARM_STEPS):
                engine.step()
            calm = [self._step(engine) for _ in range(self._parked)]
            levels.cache.begin_sweep()
            storm = [self._step(engine, levels.cache.sweep_one) for _ in range(self._parked)]
            engine.abort("cancelled")
        yield Times.of(f"step of {rows} rows", calm)
        yield Times.of(f"step of {rows} rows, a state saved in each", storm)

    @staticmethod
    def _step(engine: Engine, before: Callable[[], object] = lambda: None) -> float:
        begun = time.perf_counter()
        before()
        engine.step()
        return time.perf_counter() - begun

    def _turn(self, engine: Engine) -> History:
        """The first turn of a new session."""
        number = next(self._numbers)
        prompt = [1000 + number % 50_000] * PROMPT_TOKENS
        reply = _run(engine, self._request(prompt, self._root, keep=True))
        turn = NewTurn(prompt=prompt, reply=reply, sampling={}, finish_reason="length", duration=0.0)
        return commit_turn(read_head(OWNER, f"session {number}", self._backend.model), turn)

    def _request(self, prompt: list[int], history: History, *, max_tokens: int = 1, keep: bool = False) -> Generate:
        return Generate(
            web=OWNER,
            row=next(self._numbers),
            model="",
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=Sampling(temperature=0.0),
            stop_ids=[],
            history=history,
            keep=keep,
        )

    @staticmethod
    def _wait_for_snapshots(sessions: list[int]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while Snapshot.objects.filter(session__in=sessions).count() < len(sessions):
            if time.monotonic() > until:
                raise TimeoutError("the snapshots were not written in time")
            time.sleep(0.05)

    @contextmanager
    def _engine(self, parked: int, entries: int) -> Iterator[tuple[Engine, Levels]]:
        config = replace(Env(), engine_slots=1, state_l1_slots=parked, state_l2_entries=entries, state_l2_bytes=2**40)
        levels = Levels(self._backend, config, report=_ignore)
        try:
            yield Engine(self._backend, step_tokens=4096, states=levels.cache), levels
        finally:
            levels.close()


def _ignore(_error: Exception) -> None:
    """The keeper has logged it, and what waits for the snapshot gives up."""


def _run(engine: Engine, request: Generate) -> list[int]:
    engine.submit(request)
    tokens: list[int] = []
    while engine.has_work:
        for _web, output in engine.step():
            if output.error:
                raise RuntimeError(output.error)
            tokens += output.tokens
        if engine.stalled:  # as the engine process waits, which leaves the interpreter to the loader
            time.sleep(STALL_SECONDS)
    return tokens
