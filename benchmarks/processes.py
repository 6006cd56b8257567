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

from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError

from benchmarks import profiles, storage
from benchmarks.allowed import check_target_url
from benchmarks.loadgen import verdict
from benchmarks.loadgen.records import RunResult
from benchmarks.models import Run, Status
from benchmarks.models.runs import LOST_SECONDS
from benchmarks.run_files import read_result, read_words, remove_files
from benchmarks.stopping import is_command_of, stop_orphan
from benchmarks.watching import NotOurs, Why, beating, watch
from rwkvsite.env import BASE_DIR

log = logging.getLogger(__name__)

MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]
READ_BYTES_A_SECOND = 20e6  # of a result, at least; nothing is heard of the run meanwhile


def execute(run: Run, stopping: threading.Event) -> None:
    """From the claimed row to the ended one. Whatever goes wrong is in the row's `error`.

    Where the database is away at the end, the row and the files stay as they are: it is a lost run soon, and is
    ended as one.
    """
    try:
        process = _start(run)
    except (OSError, ValidationError, profiles.BadOption, KeyError) as error:
        remove_files(run)
        run.end(Status.FAILED, f"the run could not be started: {_words(error)}")
        return
    try:
        why = watch(run, process, stopping)
        _close(run, process.returncode, why)
    except NotOurs:
        log.warning("%s was taken over by another process while this one supervised it", run)
    except (OperationalError, InterfaceError):
        log.exception("%s is left to whoever finds it lost", run)
    except Exception as error:  # a run that stays open would block all others
        log.exception("%s could not be supervised to its end", run)
        run.end(Status.FAILED, f"{type(error).__name__}: {error}")
    finally:
        process.kill()  # without effect on one that has ended
        process.wait()


def end_lost(run: Run) -> bool:
    """End a run whose supervisor died: stop what is left of its command, and keep what it measured.

    False when its supervisor is there after all, or another process does this. Its end comes last: where the database
    fails before, or we die, the row is still open, and is found silent again. Raises OperationalError, InterfaceError.
    """
    if not run.take_over():
        return False
    with beating(run):
        if run.pid and is_command_of(run, run.pid):
            stop_orphan(run, run.pid)
    try:
        _store(run)
    except NotOurs:
        return False
    except (OperationalError, InterfaceError):
        raise
    except Exception:  # whatever it left must not keep it open: that would block all others
        log.exception("what %s measured could not be stored", run)
    run.end(Status.LOST, "the process that supervised it died")
    remove_files(run)
    return True


def _start(run: Run) -> subprocess.Popen[bytes]:
    """Raises OSError, ValidationError for a target that is no longer allowed, BadOption, KeyError for a missing key."""
    options = run.configuration["options"]
    for url in options["base_url"]:
        check_target_url(url)
    files = ["--result", str(run.file("result")), "--run-id", run.key, "--progress-json"]
    command = [*MANAGE, "bench", run.kind, *profiles.arguments(options), *files]
    run.file("result").parent.mkdir(parents=True, exist_ok=True)
    with run.file("progress").open("wb") as progress, run.file("log").open("wb") as words:
        return subprocess.Popen(
            command,
            cwd=BASE_DIR,
            env=_environment(run.configuration.get("api_key_variable", "")),
            stdin=subprocess.DEVNULL,
            stdout=progress,
            stderr=words,
            start_new_session=True,  # a signal for the worker is not one for the command
        )


def _environment(key_variable: str) -> dict[str, str]:
    """Our own with the target's key and no other: the command would send OPENAI_API_KEY to any target."""
    if key_variable and key_variable not in os.environ:
        raise KeyError(f"the environment of the worker has no {key_variable}")
    return {name: text for name, text in os.environ.items() if name == key_variable or not name.endswith("_API_KEY")}


def _close(run: Run, code: int, why: Why) -> None:
    """Raises NotOurs when another process has taken the run over."""
    if why is Why.NOT_OURS:
        if not Run.objects.filter(pk=run.pk).exists():  # somebody has deleted it
            remove_files(run)
        raise NotOurs(run)
    stored = _store(run)
    words = read_words(run)
    if why is Why.CANCELLED:
        run.end(Status.CANCELLED)
    elif why is Why.WORKER_STOPPED:
        run.end(Status.LOST, "the worker was stopped")
    elif why is Why.DATABASE_AWAY:
        run.end(Status.LOST, f"the database did not answer for {LOST_SECONDS:g} s")
    elif why is Why.TIME_LIMIT:
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
    """Store what the command measured, if it did. Raises NotOurs."""
    if not run.beat(quiet_seconds=_size(run) / READ_BYTES_A_SECOND):
        raise NotOurs(run)
    result = read_result(run)
    if result is None:
        return None
    with beating(run) as taken:

        def check() -> None:
            if taken.is_set():
                raise NotOurs(run)

        storage.store_result(result, run, before_batch=check)
    return result


def _size(run: Run) -> int:
    """Bytes of the command's result."""
    path = run.file("result")
    return path.stat().st_size if path.exists() else 0


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _words(error: Exception) -> str:
    return " ".join(error.messages) if isinstance(error, ValidationError) else str(error).strip("'\"")
