"""One engine process: it loads a checkpoint, serves it, and becomes the process for the next one when told to."""

import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

from inference.bus.messages import EngineStatus
from inference.engine.backend import Backend
from inference.worker import Worker

log = logging.getLogger(__name__)

CHECKPOINT_SUFFIXES = (".pth", ".safetensors")
DEFAULT_STEP_TOKENS = {"cpu": 256, "cuda": 4096}


def main(checkpoint: Path, fallback: Path | None = None) -> None:
    """Run one engine process by the settings, and become the one for the next model when told to load it.

    `fallback` is served if `checkpoint` cannot be. Exits with 1 and one line when neither is a checkpoint that can be
    served; what else goes wrong is raised.
    """
    from django.conf import settings

    sys.setswitchinterval(0.0001)  # neither bus threads nor step loop must wait 5 ms for the other to yield
    config = settings.RWKV
    worker = Worker(config.redis_url)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.bus.start()
    # Importing torch takes seconds, in which the heartbeat already says "loading".
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
            progress=partial(_note_progress, worker),
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
    worker.heartbeat.status.state_bytes = levels.state_bytes
    _log_model(worker.heartbeat.status)
    wanted = worker.run()
    levels.close()
    if wanted and not worker.stopping:  # who told this one to stop does not know the next one
        # A new program in this process has all the memory again, whatever this one still holds on to.
        options = ["--model", str(checkpoints[wanted]), "--fallback", str(checkpoint)]
        os.execv(sys.executable, [sys.executable, sys.argv[0], "engine", *options])  # noqa: S606


def _note_progress(worker: Worker, share: float) -> None:
    """Exits when the worker was told to stop: loading a large model takes longer than a supervisor waits."""
    worker.set_progress(share)
    if worker.stopping:
        log.info("stopping: the model is loaded to %d%%", 100 * share)
        worker.bus.stop()
        raise SystemExit(0)


def find_checkpoints(path: Path) -> dict[str, Path]:
    """The checkpoints in the folder of `path`, by the id that each would have as a model."""
    beside = sorted(file for file in path.parent.iterdir() if file.suffix in CHECKPOINT_SUFFIXES and file.is_file())
    return {file.stem: file for file in beside} | {path.stem: path}


def _log_model(state: EngineStatus) -> None:
    model = state.model
    assert model is not None
    size = f"{model.layers} layers, width {model.width}, {model.parameters / 1e9:.2f}B parameters"
    log.info(
        "model %s: %s; %s on %s in %s, %d slots", model.id, size, state.backend, state.device, state.dtype, state.slots
    )
    if model.random:
        log.warning("model %s has random weights: its text means nothing", model.id)
