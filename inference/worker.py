"""The engine process: the bus on one side, an engine on the other, and the loop between them."""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from inference.bus.messages import UNLOADED, EngineStatus, Generate, RowOutput
from inference.bus.server import EngineBus
from inference.engine.backend import Backend
from inference.engine.engine import Engine
from inference.engine.grammar import Grammars
from inference.engine.state_cache import StateCache
from inference.first_tokens import FirstTokens
from inference.grammars import GrammarCompiler
from inference.text.tokenizer import get_tokenizer

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5  # how long an idle loop sleeps before it looks at deadlines and signals
EXPIRE_SECONDS = 0.5
STALL_SECONDS = 0.001
GC_THRESHOLDS = (10_000, 20, 50)  # new objects, and collections of the younger generation, before the next collection
# What stopping takes at most, with what `sessions.levels` flushes, must be less than the supervisor's STOP_SECONDS.
DRAIN_SECONDS = 15.0  # how long running rows may go on after SIGTERM before another engine gets them
SIGN_OFF_SECONDS = 2.0  # how long what is unsent may take then, while Redis is away
# Before it changes models, an engine serves what is queued: until nothing has come for as long as a web
# process may still believe it ready, but no longer than SWITCH_SECONDS.
QUIET_SECONDS = 2.0
SWITCH_SECONDS = 120.0
CHECKPOINT_SUFFIXES = (".pth", ".safetensors")
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
        self._first_tokens = FirstTokens()
        self._stop = threading.Event()
        self._snapshot_seconds = 60.0
        self._swept = time.monotonic()

    def stop(self, *_signal: object) -> None:
        self._stop.set()

    def set_progress(self, share: float) -> None:
        self._state.progress = share

    def use(
        self, backend: Backend, step_tokens: int, states: StateCache | None = None, *, snapshot_seconds: float = 60.0
    ) -> None:
        """Run on this back end, with at most `step_tokens` tokens in a step.

        Every `snapshot_seconds`, what changed in `states` is handed to their durable store.
        """
        vocab = backend.model.vocab
        grammars = Grammars(GrammarCompiler(lambda: get_tokenizer().table[:vocab]), vocab)
        self.engine = Engine(backend, step_tokens=step_tokens, grammars=grammars, states=states)
        self._snapshot_seconds = snapshot_seconds
        state = self._state
        state.step_tokens = step_tokens
        state.model, state.slots = backend.model, self.engine.slots
        state.backend, state.device, state.dtype = backend.name, backend.device, backend.dtype
        _log_model(state)

    def offer(self, available: Iterable[str], failed: str = "") -> None:
        """Say which models could be served instead, and which of them could not be loaded."""
        self._state.available, self._state.failed_model = sorted(available), failed

    def run(self) -> str:
        """Serve until told to stop, or to load another of the models on offer, whose id is returned; then drain."""
        assert self.engine is not None and self._state.model is not None, "load() comes first"
        self.bus.start()
        self.bus.serve(self._state.model.id)
        self._state.state = "ready"
        gc.collect()
        gc.freeze()  # model and libraries stay: going through them again would stop the steps for many milliseconds
        gc.set_threshold(*GC_THRESHOLDS)
        expired = 0.0
        while not self._stop.is_set() and self.bus.wanted_model not in self._state.available:
            self._turn(self.engine)
            if time.monotonic() - expired > EXPIRE_SECONDS:
                expired = time.monotonic()
                self._publish(self.engine.expire(time.time()))
        gc.unfreeze()  # the model is to go
        if not self._stop.is_set():
            self._serve_out(self.engine)
        if self._stop.is_set():
            self._drain(self.engine)
            return ""
        return self.bus.wanted_model

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
            status.ttft_ms_p50, status.ttft_ms_p99 = self._first_tokens.percentiles()
            if states := engine.states:
                status.device_states, status.host_states = states.device_names(), states.host_names()
                status.cached_tokens = states.counters.cached_tokens
                status.state_hits = states.counters.device_hits + states.counters.host_hits
                status.state_loads = states.counters.loads
        return status

    # -- the loop -------------------------------------------------------------------------------

    def _turn(self, engine: Engine) -> None:
        """One turn of the loop: take what came, run a step, send its news."""
        for request in self.bus.arrivals():
            engine.submit(request)
            self._first_tokens.expect(request)
        for key in self.bus.cancellations():
            ended = engine.cancel(key)
            if ended:
                self._publish([ended])
            else:
                self.bus.bury(key)
        self.bus.set_capacity(engine.capacity)
        if engine.states:
            engine.states.forget(self.bus.forgotten())
            for history in self.bus.wanted():
                engine.states.warm(history)
            engine.states.take_warmed()
            self._write_behind(engine.states)
        if engine.has_work:
            self._step(engine)
        else:
            self.bus.wait(IDLE_SECONDS)
        if engine.stalled:  # all rows wait for a state or a grammar
            self.bus.wait(STALL_SECONDS)

    def _write_behind(self, states: StateCache) -> None:
        """One state a turn of the loop, so that the rows that run hardly notice."""
        if time.monotonic() - self._swept > self._snapshot_seconds:
            self._swept = time.monotonic()
            states.begin_sweep()
        states.sweep_one()

    def _step(self, engine: Engine) -> None:
        try:
            outputs = engine.step()
        except Exception as error:
            # The device or the state pool may be broken. The rows fail rather than being lost: lost
            # rows are submitted again, and a request that breaks the engine would break it for ever.
            self.bus.publish(engine.abort("error", "the engine failed while running this request"))
            self._state.last_error = repr(error)
            self.bus.report(error)
            self.bus.stop()
            raise
        self._publish(outputs)

    def _publish(self, outputs: list[tuple[str, RowOutput]]) -> None:
        self._first_tokens.see(outputs)
        self.bus.publish(outputs)

    def _serve_out(self, engine: Engine) -> None:
        """Serve what is queued for this model. What is left after SWITCH_SECONDS fails: the model will be gone."""
        self._state.state = "draining"
        log.info("changing to model %s once the queue is empty", self.bus.wanted_model)
        busy = begun = time.monotonic()
        while not self._stop.is_set() and time.monotonic() < min(busy + QUIET_SECONDS, begun + SWITCH_SECONDS):
            self._turn(engine)
            if engine.has_work:
                busy = time.monotonic()
        if self._stop.is_set():
            return
        self.bus.set_capacity(0)
        late = [
            (request.web, RowOutput(request.row, len(request.generated), finish="error", error=UNLOADED))
            for request in self.bus.arrivals()
        ]
        self.bus.publish(engine.abort("error", UNLOADED) + late)
        self.bus.stop()

    def _drain(self, engine: Engine) -> None:
        self._state.state = "draining"
        self.bus.set_capacity(0)
        until = time.monotonic() + DRAIN_SECONDS
        log.info("stopping: %d rows may finish", len(engine.running_rows()))
        while engine.has_work and time.monotonic() < until:
            for key in self.bus.cancellations():
                ended = engine.cancel(key)
                self._publish([ended] if ended else [])
            self._step(engine)
            if engine.stalled:  # what comes in the meantime is not read, so `bus.wait` would not wait
                time.sleep(STALL_SECONDS)
        left = engine.abort("lost")
        unread: list[Generate] = self.bus.arrivals()
        log.info("stopped: %d rows go back to the queue", len(left) + len(unread))
        self.bus.publish(left)
        self.bus.return_unread(unread)
        self.bus.stop(flush_seconds=SIGN_OFF_SECONDS)


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
    log.info(
        "model %s: %s; %s on %s in %s, %d slots", model.id, size, state.backend, state.device, state.dtype, state.slots
    )
    if model.random:
        log.warning("model %s has random weights: its text means nothing", model.id)


def main(checkpoint: Path, fallback: Path | None = None) -> None:
    """Run one engine process by the settings, and become the one for the next model when told to load it.

    `fallback` is served if `checkpoint` cannot be. Exits with 1 and one line when no model can be loaded.
    """
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
    from sessions.levels import Levels

    def load(path: Path) -> Backend:
        return create_backend(
            name=config.engine_backend,
            checkpoint=path,
            slots=config.engine_slots and config.engine_slots + config.state_l1_slots,
            device=config.engine_device,
            dtype=config.engine_dtype,
            progress=worker.set_progress,
        )

    failed = ""
    if fallback:
        try:
            backend = load(checkpoint)
        except (CheckpointError, ValueError, RuntimeError) as error:  # RuntimeError: it needs too much memory
            log.error("cannot load %s, going back to %s: %s", checkpoint.stem, fallback.stem, error)
            checkpoint, failed = fallback, checkpoint.stem
    if not fallback or failed:  # not within `except`: the error holds on to what was loaded
        try:
            backend = load(checkpoint)
        except (CheckpointError, ValueError) as error:
            log.error("cannot load the model: %s", error)
            worker.bus.report(error)
            worker.bus.stop()
            raise SystemExit(1) from error
    checkpoints = find_checkpoints(checkpoint)
    worker.offer(checkpoints, failed)
    step_tokens = config.engine_step_tokens or DEFAULT_STEP_TOKENS.get(backend.device.split(":")[0], 256)
    levels = Levels(backend, config, worker.bus.report)
    worker.use(backend, step_tokens, levels.cache, snapshot_seconds=config.snapshot_seconds)
    wanted = worker.run()
    levels.close()
    if wanted:
        # A new program in this process has all the memory again, whatever this one still holds on to.
        options = ["--model", str(checkpoints[wanted]), "--fallback", str(checkpoint)]
        os.execv(sys.executable, [sys.executable, sys.argv[0], "engine", *options])  # noqa: S606


def find_checkpoints(path: Path) -> dict[str, Path]:
    """The checkpoints in the folder of `path`, by the id that each would have as a model."""
    beside = sorted(file for file in path.parent.iterdir() if file.suffix in CHECKPOINT_SUFFIXES and file.is_file())
    return {file.stem: file for file in beside} | {path.stem: path}
