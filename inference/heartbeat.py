"""What an engine says of itself, once a second."""

import os
import socket
import time

from inference.bus.messages import EngineStatus
from inference.engine.backend import Backend
from inference.engine.engine import Engine
from inference.engine.memory import process_memory
from inference.first_tokens import FirstTokens


class Heartbeat:
    """`status` is what its owner knows; `now`, which another thread may call, adds what changes from beat to beat."""

    def __init__(self, engine: str) -> None:
        self.status = EngineStatus(
            engine=engine,
            state="loading",
            host=socket.gethostname(),
            pid=os.getpid(),
            started=time.time(),
            updated=0.0,
        )
        self.first_tokens = FirstTokens()
        self._rates = _Rates()
        self._running: tuple[Engine, Backend] | None = None

    def use(self, engine: Engine, backend: Backend, step_tokens: int) -> None:
        """Speak of this engine from now on."""
        status = self.status
        status.step_tokens = step_tokens
        status.model, status.slots = backend.model, engine.slots
        status.backend, status.device, status.dtype = backend.name, backend.device, backend.dtype
        self._running = engine, backend

    def now(self) -> EngineStatus:
        self.status.updated = time.time()
        self.status.process_memory = process_memory()
        if self._running:
            self._describe(*self._running)
        return self.status

    def _describe(self, engine: Engine, backend: Backend) -> None:
        status, counters = self.status, engine.counters
        status.memory_free, status.memory_total = backend.memory()
        status.rows = rows = engine.running_rows()
        status.waiting = sum(row.state == "waiting" for row in rows)
        status.running = len(rows) - status.waiting
        status.steps = counters.steps
        status.prompt_tokens, status.generated_tokens = counters.prompt_tokens, counters.generated_tokens
        (
            status.step_ms,
            status.prompt_tokens_per_second,
            status.generated_tokens_per_second,
        ) = self._rates.update(counters.steps, counters.prompt_tokens, counters.generated_tokens)
        status.ttft_ms_p50, status.ttft_ms_p99 = self.first_tokens.percentiles()
        if states := engine.states:
            status.device_states, status.host_states = states.device_names(), states.host_names()
            status.cached_tokens = states.counters.cached_tokens
            status.state_hits = states.counters.device_hits + states.counters.host_hits
            status.state_loads = states.counters.loads


class _Rates:
    """Steps and tokens per second between two heartbeats."""

    def __init__(self) -> None:
        self._last = (time.monotonic(), 0, 0, 0)

    def update(self, steps: int, prompt_tokens: int, generated_tokens: int) -> tuple[float, float, float]:
        now, (then, *before) = time.monotonic(), self._last
        self._last = (now, steps, prompt_tokens, generated_tokens)
        seconds = max(now - then, 1e-6)
        more = [new - old for new, old in zip((steps, prompt_tokens, generated_tokens), before, strict=True)]
        step_ms = seconds * 1000 / more[0] if more[0] else 0.0
        return step_ms, more[1] / seconds, more[2] / seconds
