"""The work of an engine process: the bus on one side, an engine on the other, and the loop between them."""

import gc
import logging
import threading
import time
from collections.abc import Iterable

from inference.bus.messages import UNLOADED, RowOutput
from inference.bus.server import EngineBus
from inference.engine.backend import Backend
from inference.engine.engine import Engine
from inference.engine.grammar import Grammars
from inference.engine.state_cache import StateCache
from inference.garbage import keep_what_is_loaded
from inference.grammars import GrammarCompiler
from inference.heartbeat import Heartbeat
from inference.text.tokenizer import get_tokenizer

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5  # how long an idle loop sleeps before it looks at deadlines and signals
EXPIRE_SECONDS = 0.5
STALL_SECONDS = 0.001
# What stopping takes at most, with what `sessions.levels` flushes, must be less than the supervisor's STOP_SECONDS.
DRAIN_SECONDS = 15.0  # how long running rows may go on after SIGTERM before another engine gets them
SIGN_OFF_SECONDS = 2.0  # how long what is unsent may take then, while Redis is away
# Before it changes models, an engine serves what is queued: until nothing has come for as long as a web
# process may still believe it ready, but no longer than SWITCH_SECONDS.
QUIET_SECONDS = 2.0
SWITCH_SECONDS = 120.0


class Worker:
    """Owns the engine. All of it is the loop's, but `stop` and `set_progress`, which may be called at any time."""

    def __init__(self, redis_url: str) -> None:
        self.bus = EngineBus(redis_url, status=lambda: self.heartbeat.now())
        self.heartbeat = Heartbeat(self.bus.name)
        self.engine: Engine | None = None
        self._stop = threading.Event()
        self._snapshot_seconds = 60.0
        self._swept = time.monotonic()

    def stop(self, *_signal: object) -> None:
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def set_progress(self, share: float) -> None:
        """Say how much of the checkpoint is loaded."""
        self.heartbeat.status.progress = share

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
        self.heartbeat.use(self.engine, backend, step_tokens)

    def offer(self, available: Iterable[str], failed: str = "") -> None:
        """Say which models could be served instead, and which of them could not be loaded."""
        self.heartbeat.status.available, self.heartbeat.status.failed_model = sorted(available), failed

    def run(self) -> str:
        """Serve until told to stop, or to load another of the models on offer, whose id is returned; then drain."""
        status = self.heartbeat.status
        assert self.engine is not None and status.model is not None, "use() comes first"
        keep_what_is_loaded()
        self.bus.start()
        self.bus.serve(status.model.id)
        status.state = "ready"
        expired = 0.0
        while not self.stopping and self.bus.wanted_model not in status.available:
            self._turn(self.engine)
            if time.monotonic() - expired > EXPIRE_SECONDS:
                expired = time.monotonic()
                self._publish(self.engine.expire(time.time()))
        gc.unfreeze()  # the model is to go
        if not self.stopping:
            self._serve_out(self.engine)
        if self.stopping:
            self._drain(self.engine)
            return ""
        return self.bus.wanted_model

    # -- the loop -------------------------------------------------------------------------------

    def _turn(self, engine: Engine) -> None:
        """One turn of the loop: take what came, run a step, send its news."""
        for request in self.bus.arrivals():
            engine.submit(request)
            self.heartbeat.first_tokens.expect(request)
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
            self.heartbeat.status.last_error = repr(error)
            self.bus.report(error)
            self.bus.stop()
            raise
        self._publish(outputs)

    def _publish(self, outputs: list[tuple[str, RowOutput]]) -> None:
        self.heartbeat.first_tokens.see(outputs)
        self.bus.publish(outputs)

    def _serve_out(self, engine: Engine) -> None:
        """Serve what is queued for this model. What is left after SWITCH_SECONDS fails: the model will be gone."""
        self.heartbeat.status.state = "draining"
        log.info("changing to model %s once the queue is empty", self.bus.wanted_model)
        busy = begun = time.monotonic()
        while not self.stopping and time.monotonic() < min(busy + QUIET_SECONDS, begun + SWITCH_SECONDS):
            self._turn(engine)
            if engine.has_work:
                busy = time.monotonic()
        if self.stopping:
            return
        late = [
            (request.web, RowOutput(request.row, len(request.generated), finish="error", error=UNLOADED))
            for request in self.bus.close_intake()
        ]
        self.bus.publish(engine.abort("error", UNLOADED) + late)
        self.bus.stop()

    def _drain(self, engine: Engine) -> None:
        self.heartbeat.status.state = "draining"
        self.bus.set_capacity(0)
        until = time.monotonic() + DRAIN_SECONDS
        log.info("stopping: %d rows may finish", len(engine.running_rows()))
        while engine.has_work and time.monotonic() < until:
            for key in self.bus.cancellations():
                ended = engine.cancel(key)
                self._publish([ended] if ended else [])
            self._step(engine)
            if engine.stalled:
                self.bus.wait(STALL_SECONDS)
        left, unread = engine.abort("lost"), self.bus.close_intake()
        log.info("stopped: %d rows go back to the queue", len(left) + len(unread))
        self.bus.publish(left)
        self.bus.return_unread(unread)
        self.bus.stop(flush_seconds=SIGN_OFF_SECONDS)
