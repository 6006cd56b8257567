"""Executes one claimed run: starts its command, watches it, and puts what it measured into the row.

The command is the one of the terminal, in a process of its own: the ORM, the garbage of Celery and its signals stay
out of what is measured. It writes progress and result into files, not pipes, so that a worker that dies neither stops
nor blocks it, and the next one finds what it measured.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from django.core.exceptions import ValidationError
from django.db import connection

from benchmarks import profiles, storage
from benchmarks.allowed import check_target_url
from benchmarks.loadgen import verdict
from benchmarks.loadgen.records import RunResult
from benchmarks.models import Run, Status
from benchmarks.models.runs import HEARTBEAT_SECONDS
from benchmarks.run_files import read_progress, read_result, read_words, remove_files
from rwkvsite.env import BASE_DIR

log = logging.getLogger(__name__)

MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]
# What the command may take from an interrupt to its partial result, before it is killed.
STOP_SECONDS = 20.0
STORING_SECONDS = 600.0  # in which a large result is written, and nothing is heard of the run


def execute(run: Run, stopping: threading.Event) -> None:
    """From the claimed row to the ended one. Whatever goes wrong is in the row's `error`."""
    try:
        process = _start(run)
    except (OSError, ValidationError, profiles.BadOption, KeyError) as error:
        run.end(Status.FAILED, f"the run could not be started: {_words(error)}")
        return
    try:
        reason = _watch(run, process, stopping)
        _close(run, process.returncode, reason)
    except Exception as error:  # a run that stays open would block all others
        log.exception("%s could not be supervised to its end", run)
        run.end(Status.FAILED, f"{type(error).__name__}: {error}")
    finally:
        process.kill()  # without effect on one that has ended
        process.wait()


def end_lost(run: Run) -> None:
    """End a run whose supervisor died: stop what is left of its command, and keep what it measured."""
    if run.pid and _is_command_of(run, run.pid):
        os.kill(run.pid, signal.SIGINT)
        _wait_gone(run, run.pid)
    run.end(Status.LOST, "the process that supervised it died")  # first: whatever it left must not keep it open
    _store(run)
    remove_files(run)


def _start(run: Run) -> subprocess.Popen[bytes]:
    """Raises OSError, ValidationError for a target that is no longer allowed, BadOption, KeyError for a missing key."""
    options = run.configuration["options"]
    for url in options["base_url"]:
        check_target_url(url)
    files = ["--result", str(run.file("result")), "--run-id", run.key, "--progress-json"]
    command = [*MANAGE, "bench", run.kind, *profiles.arguments(options), *files]
    run.file("result").parent.mkdir(parents=True, exist_ok=True)
    with run.file("progress").open("wb") as progress, run.file("log").open("wb") as words:
        process = subprocess.Popen(
            command,
            cwd=BASE_DIR,
            env=_environment(run.configuration.get("api_key_variable", "")),
            stdin=subprocess.DEVNULL,
            stdout=progress,
            stderr=words,
            start_new_session=True,  # a signal for the worker is not one for the command
        )
    run.beat(pid=process.pid)
    return process


def _environment(key_variable: str) -> dict[str, str]:
    """Our own with the target's key and no other: the command would send OPENAI_API_KEY to any target."""
    if key_variable and key_variable not in os.environ:
        raise KeyError(f"the environment of the worker has no {key_variable}")
    return {name: text for name, text in os.environ.items() if name == key_variable or not name.endswith("_API_KEY")}


def _watch(run: Run, process: subprocess.Popen[bytes], stopping: threading.Event) -> str:
    """Until the process ends. Returns why we ended it: "", "cancelled", "time limit", "worker stopped", "not ours"."""
    reason = ""
    interrupted_for = 0.0
    while True:
        try:
            process.wait(HEARTBEAT_SECONDS)
        except subprocess.TimeoutExpired:
            ours = run.beat(progress=read_progress(run))
            connection.close()  # a load may take hours, and a database may end what is idle for so long
        else:
            return reason
        if not reason:
            reason = _reason_to_stop(run, ours, stopping)
            if reason:
                process.send_signal(signal.SIGINT)
        else:
            interrupted_for += HEARTBEAT_SECONDS
            if interrupted_for >= STOP_SECONDS:
                process.kill()


def _reason_to_stop(run: Run, ours: bool, stopping: threading.Event) -> str:
    if not ours:
        return "not ours"
    if run.cancel_requested:
        return "cancelled"
    if stopping.is_set():
        return "worker stopped"
    if (run.seconds or 0.0) > run.configuration.get("max_seconds", float("inf")):
        return "time limit"
    return ""


def _close(run: Run, code: int, reason: str) -> None:
    run.beat(quiet_seconds=STORING_SECONDS)
    stored = _store(run)
    words = read_words(run)
    if reason == "not ours":
        log.warning("%s was ended by another process while this one supervised it", run)
    elif reason == "cancelled":
        run.end(Status.CANCELLED)
    elif reason == "worker stopped":
        run.end(Status.LOST, "the worker was stopped")
    elif reason == "time limit":
        run.end(Status.FAILED, f"stopped after {run.configuration['max_seconds']} s, its limit")
    elif stored is None:
        run.end(Status.FAILED, words or f"the command ended {_how(code)} and left no result")
    elif stored.cancelled:
        run.end(Status.CANCELLED, "its command was interrupted")
    elif died := verdict.failure(stored):
        run.end(Status.FAILED, died)
    else:
        run.end(Status.DONE)
    remove_files(run)


def _store(run: Run) -> RunResult | None:
    """Store what the command measured, if it did."""
    result = read_result(run)
    if result is not None:
        storage.store_result(result, run)
    return result


def _is_command_of(run: Run, pid: int) -> bool:
    """Whether this process still is the run's command: its id may belong to another by now."""
    try:
        return run.key.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_gone(run: Run, pid: int) -> None:
    """Until an interrupted command, which is no child of ours, has ended; kill it after STOP_SECONDS."""
    never = threading.Event()
    for _ in range(int(STOP_SECONDS / 0.1)):
        if not _is_command_of(run, pid):
            return
        never.wait(0.1)
    os.kill(pid, signal.SIGKILL)


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _words(error: Exception) -> str:
    return " ".join(error.messages) if isinstance(error, ValidationError) else str(error).strip("'\"")
