"""The engine process: the bus on one side, an engine on the other, and the loop between them."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from inference.bus.messages import EngineStatus, Generate
from inference.bus.server import EngineBus
from inference.engine.backend import Backend
from inference.engine.engine import Engine

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5  # how long an idle loop sleeps before it looks at deadlines and signals
EXPIRE_SECONDS = 0.5
DRAIN_SECONDS = 20.0  # how long running rows may go on after SIGTERM before another engine gets them
DEFAULT_STEP_TOKENS = {"cpu": 256, "cuda": 4096}


class Worker:
    """Owns the engine. `status` may be called from another thread; everything else is the loop's."""

    def __init__(self, redis_url: str) -> None:
        self.bus = EngineBus(redis_url, status=self.status)
        self.engine: Engine | None = None
        self._state = EngineStatus(
            engine=self.bus.name,
            state="loading",
            host=socket.gethostname(),
            pid=os.getpid(),
            started=time.time(),
            updated=0.0,
        )
        self._rates = _Rates()
        self._stop = threading.Event()

    def stop(self, *_signal: object) -> None:
        self._stop.set()

    def set_progress(self, share: float) -> None:
        self._state.progress = share

    def use(self, backend: Backend, step_tokens: int) -> None:
        """Run on this back end, with at most `step_tokens` tokens in a step."""
        self.engine = Engine(backend, step_tokens=step_tokens)
        state = self._state
        state.model, state.backend, state.device, state.slots = (
            backend.model,
            backend.name,
            backend.device,
            backend.slots,
        )
        _log_model(state)

    def run(self) -> None:
        """Serve until told to stop, then drain."""
        assert self.engine is not None and self._state.model is not None, "load() comes first"
        self.bus.start()
        self.bus.serve(self._state.model.id)
        self._state.state = "ready"
        expired = 0.0
        while not self._stop.is_set():
            self._turn(self.engine)
            if time.monotonic() - expired > EXPIRE_SECONDS:
                expired = time.monotonic()
                self.bus.publish(self.engine.expire(time.time()))
        self._drain(self.engine)

    def status(self) -> EngineStatus:
        status, engine = self._state, self.engine
        status.updated = time.time()
        if engine:
            rows = engine.running_rows()
            counters = engine.counters
            status.rows = rows
            status.waiting = sum(row.state == "waiting" for row in rows)
            status.running = len(rows) - status.waiting
            status.steps = counters.steps
            status.prompt_tokens, status.generated_tokens = counters.prompt_tokens, counters.generated_tokens
            (
                status.step_ms,
                status.prompt_tokens_per_second,
                status.generated_tokens_per_second,
            ) = self._rates.update(counters.steps, counters.prompt_tokens, counters.generated_tokens)
        return status

    # -- the loop -------------------------------------------------------------------------------

    def _turn(self, engine: Engine) -> None:
        """One turn of the loop: take what came, run a step, send its news."""
        for request in self.bus.arrivals():
            engine.submit(request)
        for key in self.bus.cancellations():
            ended = engine.cancel(key)
            if ended:
                self.bus.publish([ended])
            else:
                self.bus.bury(key)
        self.bus.set_capacity(engine.capacity)
        if engine.has_work:
            self._step(engine)
        else:
            self.bus.wait(IDLE_SECONDS)

    def _step(self, engine: Engine) -> None:
        try:
            outputs = engine.step()
        except Exception as error:
            # The device or the state pool may be broken. The rows fail rather than being lost: lost
            # rows are submitted again, and a request that breaks the engine would break it for ever.
            self.bus.publish(engine.abort("error", "the engine failed while running this request"))
            self._state.last_error = repr(error)
            self.bus.stop()
            raise
        self.bus.publish(outputs)

    def _drain(self, engine: Engine) -> None:
        self._state.state = "draining"
        self.bus.set_capacity(0)
        until = time.monotonic() + DRAIN_SECONDS
        log.info("stopping: %d rows may finish", len(engine.running_rows()))
        while engine.has_work and time.monotonic() < until:
            for key in self.bus.cancellations():
                ended = engine.cancel(key)
                self.bus.publish([ended] if ended else [])
            self._step(engine)
        left = engine.abort("lost")
        unread: list[Generate] = self.bus.arrivals()
        log.info("stopped: %d rows go back to the queue", len(left) + len(unread))
        self.bus.publish(left)
        self.bus.return_unread(unread)
        self.bus.stop()


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


def _log_model(state: EngineStatus) -> None:
    model = state.model
    assert model is not None
    size = f"{model.layers} layers, width {model.width}, {model.parameters / 1e9:.2f}B parameters"
    log.info("model %s: %s; %s on %s, %d slots", model.id, size, state.backend, state.device, state.slots)
    if model.random:
        log.warning("model %s has random weights: its text means nothing", model.id)


def main() -> None:
    """Run one engine process by the settings. Exits with 1 and one line when the model cannot be loaded."""
    from django.conf import settings

    # Importing torch takes seconds, in which the heartbeat could already say "loading".
    sys.setswitchinterval(0.0005)  # the bus threads must not wait 5 ms for the step loop to yield
    config = settings.RWKV
    worker = Worker(config.redis_url)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.bus.start()
    from inference.engine.backends import create_backend
    from inference.engine.weights import CheckpointError

    try:
        backend = create_backend(
            name=config.engine_backend,
            checkpoint=Path(config.model),
            slots=config.engine_slots,
            device=config.engine_device,
            dtype=config.engine_dtype,
            progress=worker.set_progress,
        )
    except (CheckpointError, ValueError) as error:
        log.error("cannot load the model: %s", error)
        worker.bus.stop()
        raise SystemExit(1) from error
    worker.use(backend, config.engine_step_tokens or DEFAULT_STEP_TOKENS.get(backend.device.split(":")[0], 256))
    worker.run()
