"""Watches the command of a run until it has ended, and says meanwhile that the run goes on."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from django.db import Error, connection, connections

from benchmarks.models import Run
from benchmarks.models.runs import HEARTBEAT_SECONDS, LOST_SECONDS
from benchmarks.run_files import read_progress
from benchmarks.stopping import Patience, interrupt

log = logging.getLogger(__name__)


class Why(StrEnum):
    """Why a command was interrupted."""

    NOTHING = ""
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    WORKER_STOPPED = "worker stopped"
    NOT_OURS = "not ours"
    DATABASE_AWAY = "database away"


class NotOurs(Exception):
    """Another process supervises the run now."""


class Heartbeat:
    """Of a run that is being supervised. While the database fails, the run goes on for as long as nobody takes it for
    lost."""

    def __init__(self, name: object) -> None:
        self._name = name
        self._heard = time.monotonic()

    def beat(self, say: Callable[[], bool]) -> Why:
        """NOT_OURS when `say`, which writes to the database that the run goes on, is False; DATABASE_AWAY when it has
        failed for too long."""
        ours = True
        try:
            ours = say()
            self._heard = time.monotonic()
        except Error as error:
            log.warning("%s goes on, though the database fails: %s", self._name, error)
        connection.close()  # a run may take hours, and a database may end what is idle for so long
        if not ours:
            return Why.NOT_OURS
        return Why.DATABASE_AWAY if time.monotonic() - self._heard >= LOST_SECONDS else Why.NOTHING


def watch(run: Run, process: subprocess.Popen[bytes], stopping: threading.Event) -> Why:
    """Until the process ends. Returns why we ended it; NOTHING when it ended by itself."""
    heartbeat, why, patience = Heartbeat(run), Why.NOTHING, None
    begun = time.monotonic()  # the clock on the wall may be set meanwhile
    while True:
        gone = heartbeat.beat(lambda: run.beat(pid=process.pid, progress=read_progress(run)))
        if patience is None:
            why = gone or _reason_to_stop(run, stopping, time.monotonic() - begun)
            if why:
                interrupt(run, process.pid)
                patience = Patience(run, process.pid)
        elif patience.is_over():
            process.kill()
        try:
            process.wait(HEARTBEAT_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return why


@contextmanager
def beating(run: Run) -> Iterator[threading.Event]:
    """Beside us somebody says that the run goes on, for the length of the block. The event: it is not ours any more."""
    over, taken = threading.Event(), threading.Event()

    def beat() -> None:
        try:
            while not taken.is_set():
                try:
                    if not run.beat():
                        taken.set()
                except Error as error:
                    log.warning("%s is finished, though the database fails: %s", run, error)
                    connection.close()
                if over.wait(HEARTBEAT_SECONDS):
                    return
        finally:
            connections.close_all()

    thread = threading.Thread(target=beat, name=f"heartbeat of {run}")
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


def _reason_to_stop(run: Run, stopping: threading.Event, seconds: float) -> Why:
    if run.cancel_requested:
        return Why.CANCELLED
    if stopping.is_set():
        return Why.WORKER_STOPPED
    if seconds > run.configuration.get("max_seconds", float("inf")):
        return Why.TIME_LIMIT
    return Why.NOTHING
