"""Executes one claimed run: starts the command of the terminal, watches it, and stores what it finds.

The command keeps its items itself, so a run whose worker is stopped, or dies, goes on where it was.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError

from benchmarks import datafiles
from benchmarks.allowed import check_target_url
from benchmarks.evals.journal import read_header, read_items
from benchmarks.evals.models import EvalRun
from benchmarks.evals.storage import store_items, store_summary
from benchmarks.models.runs import HEARTBEAT_SECONDS, LOST_SECONDS, Status
from benchmarks.watching import Heartbeat, Why
from inference.supervisor import TETHER
from rwkvsite.env import BASE_DIR

log = logging.getLogger(__name__)

STOP_SECONDS = 20.0  # from SIGTERM to the partial summary, before the command is killed
SHOWN_CHARACTERS = 2000


def execute(run: EvalRun, stopping: threading.Event) -> None:
    """From the claimed row to the ended one, or back to a queued one when the worker stops meanwhile.

    Where the database is away at the end, the row stays as it is: it is a lost run soon, and can go on.
    """
    try:
        process = _start(run)
    except (OSError, ValidationError, KeyError) as error:
        words = " ".join(error.messages) if isinstance(error, ValidationError) else str(error).strip("'\"")
        run.end(Status.FAILED, f"the run could not be started: {words}")
        return
    try:
        _close(run, process, _watch(run, process, stopping))
    except (OperationalError, InterfaceError):
        log.exception("%s is left to whoever finds it lost", run.key)
    except Exception as error:  # a run that stays open would block its server
        log.exception("%s could not be supervised to its end", run.key)
        run.end(Status.FAILED, f"{type(error).__name__}: {error}")
    finally:
        process.kill()  # without effect on one that has ended
        process.wait()


def _close(run: EvalRun, process: subprocess.Popen[bytes], why: Why) -> None:
    store_summary(run)
    if why is Why.NOT_OURS:
        log.warning("%s was ended by another process while this one supervised it", run.key)
    elif why is Why.WORKER_STOPPED:
        run.put_back()
    elif why is Why.DATABASE_AWAY:
        run.end(Status.LOST, f"the database did not answer for {LOST_SECONDS:g} s")
    elif why is Why.CANCELLED:
        run.end(Status.CANCELLED)
    elif process.returncode < 0:
        run.end(Status.FAILED, f"the command was ended by {signal.Signals(-process.returncode).name}")
    elif process.returncode:
        run.end(Status.FAILED, _tail(run.folder / "log") or f"the command ended with {process.returncode}")
    else:
        run.end(Status.DONE)


def _start(run: EvalRun) -> subprocess.Popen[bytes]:
    """Raises OSError, ValidationError for a server that is no longer allowed, KeyError for a missing key."""
    check_target_url(run.base_url)
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(TETHER), str(os.getpid()), sys.executable, str(BASE_DIR / "manage.py")]
    with (run.folder / "log").open("wb") as words:
        return subprocess.Popen(
            [*command, "eval", run.task, *_arguments(run)],
            cwd=BASE_DIR,
            env=_environment(run.configuration["api_key_variable"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,  # a signal for the worker is not one for the command
        )


def _arguments(run: EvalRun) -> list[str]:
    """The configuration as the command's options."""
    wanted = run.configuration
    given = {
        "base-url": run.base_url,
        "allow-host": run.host_of_server,  # `check_target_url` has allowed it
        "output": run.folder,
        "data": datafiles.resolve(wanted["data"]) if wanted["data"] else None,
        "sha256": wanted.get("sha256"),  # which runs of older configurations do not have
        "limit": wanted["limit"],
        "model": wanted["model"],
        "concurrency": wanted["concurrency"],
        "batch": wanted.get("batch"),
        "api-key-env": wanted["api_key_variable"],
        **{name.replace("_", "-"): _option(name, value) for name, value in wanted["options"].items()},
    }
    options = [part for name, value in given.items() if value not in (None, "") for part in (f"--{name}", str(value))]
    return [*options, "--load-model"] if wanted["load"] else options


def _option(name: str, value: object) -> object:
    return "none" if name == "prefix" and value is None else value


def _environment(key_variable: str) -> dict[str, str]:
    """Our own with the target's key and no other, which could be sent to a server it is not for."""
    if key_variable and key_variable not in os.environ:
        raise KeyError(f"the environment of the worker has no {key_variable}")
    return {name: text for name, text in os.environ.items() if name == key_variable or not name.endswith("_API_KEY")}


def _watch(run: EvalRun, process: subprocess.Popen[bytes], stopping: threading.Event) -> Why:
    """Until the process ends, storing items as they come. Returns why we ended it; NOTHING when it ended by itself."""
    stored, heartbeat = _Stored(run), Heartbeat(run.key)
    why, waited = Why.NOTHING, 0.0
    while not _ended(process):
        gone = heartbeat.beat(stored.go_on)
        if not why:
            why = gone or _reason_to_stop(run, stopping)
            if why:
                process.send_signal(signal.SIGTERM)
        else:
            waited += HEARTBEAT_SECONDS
            if waited >= STOP_SECONDS:
                process.kill()
    stored.go_on()
    return why


class _Stored:
    """How much of a run's folder is in its rows."""

    def __init__(self, run: EvalRun) -> None:
        self._run = run
        self._place = 0

    def go_on(self) -> bool:
        """Store what is new, and say that the run goes on; False when it is not ours any more."""
        items, place = read_items(self._run.folder, self._place)
        store_items(self._run, items)
        self._place = place
        header = read_header(self._run.folder)
        return self._run.beat(n=self._run.items.count(), documents=header and header.documents)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(HEARTBEAT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _reason_to_stop(run: EvalRun, stopping: threading.Event) -> Why:
    if run.cancel_requested:
        return Why.CANCELLED
    return Why.WORKER_STOPPED if stopping.is_set() else Why.NOTHING


def _tail(path: Path) -> str:
    """The last line that the command wrote, which is its error."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1].removeprefix("CommandError: ")[-SHOWN_CHARACTERS:] if lines else ""
