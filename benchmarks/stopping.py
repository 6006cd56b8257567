"""Has the command of a run stop: asks it once, and waits for as long as it works on what it measured."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import process_cpu
from benchmarks.models import Run
from benchmarks.run_files import read_progress

# An interrupted command sends nothing more, and reads what it has captured, which may take minutes. It is killed when
# it worked less than a share of so long, when it still sends after so long, and at last in any case.
STOP_SECONDS = 20.0
LEAST_SHARE = 0.1  # of a core, in those seconds
READING_SECONDS = 600.0
POLL_SECONDS = 0.25


def interrupt(run: Run, pid: int) -> None:
    """Have the command end with what it has. Only once, whoever asks: a second interrupt would end it without."""
    try:
        run.file("interrupted").touch(exist_ok=False)
    except FileExistsError:
        return
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, signal.SIGINT)


class Patience:
    """With one command that was interrupted just now. `is_over` wants to be asked again and again."""

    def __init__(self, run: Run, pid: int) -> None:
        self._run = run
        self._pid = pid
        self._begun = self._marked = time.monotonic()
        self._cpu = self._cpu_seconds()
        self._elapsed = self._sending_for()

    def is_over(self) -> bool:
        now, cpu = time.monotonic(), self._cpu_seconds()
        if now - self._begun >= READING_SECONDS or self._sending_for() - self._elapsed >= STOP_SECONDS:
            return True
        if cpu - self._cpu >= LEAST_SHARE * STOP_SECONDS:
            self._marked, self._cpu = now, cpu
        return now - self._marked >= STOP_SECONDS

    def _cpu_seconds(self) -> float:
        return process_cpu.session_cpu_seconds(self._pid)

    def _sending_for(self) -> float:
        """The last second of the run at which the command said that it sends."""
        said = read_progress(self._run)
        return float(said.get("elapsed", 0.0)) if said.get("state") == "running" else 0.0


def is_command_of(run: Run, pid: int) -> bool:
    """Whether this process still is the run's command: its id may belong to another by now."""
    try:
        return run.key.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop_orphan(run: Run, pid: int) -> None:
    """Stop a command that is no child of ours, and wait until it is gone."""
    interrupt(run, pid)
    patience, never = Patience(run, pid), threading.Event()
    while is_command_of(run, pid):
        if patience.is_over():
            os.kill(pid, signal.SIGKILL)
            return
        never.wait(POLL_SECONDS)
