"""The worker processes of a run: started, told, listened to, and never left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from benchmarks.loadgen import messages
from benchmarks.loadgen.messages import Message, Over, Progress, Read, Ready, Report, Start, Stop, Task

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.1
START_MARGIN_SECONDS = 0.1  # between the word to start and the start, so that it reaches all workers before
STOP_SECONDS = 5.0

Answer = TypeVar("Answer", bound=Message)


class Crew:
    """One process for each task, for the length of a `with` block.

    `on_progress(worker, progress)` hears what they do. `watch()` is called all the time while they work: it may `stop`
    them. A worker that dies is `lost`, and the others go on.
    """

    def __init__(
        self, tasks: Sequence[Task], on_progress: Callable[[int, Progress], None], watch: Callable[[], None]
    ) -> None:
        self.lost: list[int] = []
        self._on_progress = on_progress
        self._watch = watch
        self._stopped = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: dict[int, Connection] = {}
        self._tasks = tasks

    def __enter__(self) -> Self:
        for task in self._tasks:
            ours, theirs = socket.socketpair()
            self._processes.append(_start_worker(theirs))
            self._pipes[task.worker] = Connection(ours.detach())
        for task in self._tasks:
            self._tell(task.worker, task)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Without its pipe a worker ends by itself."""
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def get_ready(self) -> None:
        """Wait until all have warmed up."""
        self._gather(Ready)

    def start(self) -> float:
        """Start them all at one moment, which is returned (of time.monotonic)."""
        epoch = time.monotonic() + START_MARGIN_SECONDS
        if not self._stopped:
            self._tell_all(Start(epoch))
        return epoch

    def finish(self) -> list[Report]:
        """Wait for the load's end, and then for what was measured."""
        self._gather(Over)
        self._tell_all(Read())
        return self._gather(Report)

    def stop(self, grace: float) -> None:
        """Send nothing more; what runs has `grace` seconds."""
        self._stopped = True
        self._tell_all(Stop(grace))

    def _gather(self, kind: type[Answer]) -> list[Answer]:
        """Wait until each worker that lives has sent a message of this kind."""
        found: dict[int, Answer] = {}
        # A worker may be lost at any time, also while it is told something.
        while missing := {pipe: worker for worker, pipe in self._pipes.items() if worker not in found}:
            for pipe in wait(list(missing), POLL_SECONDS):
                assert isinstance(pipe, Connection)
                message = self._hear(missing[pipe], pipe)
                if isinstance(message, Progress):
                    self._on_progress(missing[pipe], message)
                elif isinstance(message, kind):
                    found[missing[pipe]] = message
            self._watch()
        return [found[worker] for worker in sorted(found)]

    def _hear(self, worker: int, pipe: Connection) -> Message | None:
        """None from a worker that has died."""
        try:
            return messages.receive(pipe)
        except (EOFError, ConnectionResetError):
            self._lose(worker)
            return None

    def _tell_all(self, message: Message) -> None:
        for worker in list(self._pipes):
            self._tell(worker, message)

    def _tell(self, worker: int, message: Message) -> None:
        try:
            messages.send(self._pipes[worker], message)
        except (BrokenPipeError, ConnectionResetError):
            self._lose(worker)

    def _lose(self, worker: int) -> None:
        self._pipes.pop(worker).close()
        self.lost.append(worker)


def _start_worker(pipe: socket.socket) -> subprocess.Popen[bytes]:
    """In a process group of its own: a terminal's Ctrl-C is for the supervisor, who ends the load in order."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pipe:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.loadgen.worker", str(pipe.fileno())],
            pass_fds=[pipe.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
