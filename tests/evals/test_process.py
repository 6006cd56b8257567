"""The command of a run, and what becomes of both when either of them, or the worker, is stopped or killed."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from benchmarks import watching
from benchmarks.evals import tasks
from benchmarks.evals.actions import NotPossible, cancel_run, queue_sweep, resume_run
from benchmarks.evals.journal import ITEMS
from benchmarks.evals.models import EvalRun
from benchmarks.evals.process import execute
from benchmarks.models.runs import LOST_SECONDS, Status
from rwkvsite.env import BASE_DIR
from tests.benchmarks.executing import out_of_reach
from tests.evals.conftest import right_at
from tests.service import descendants, is_running, wait_until

SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("transactional_db", "redis_url")


def test_a_cancelled_run_keeps_its_items_and_can_go_on(sweep, foreign):
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    claimed = EvalRun.objects.claim_next()
    worker = threading.Thread(target=in_a_thread, args=(claimed, threading.Event()))
    worker.start()
    wait_until(lambda: run.items.count() == 16, SECONDS, "the first request's documents are stored")
    wait_until(lambda: EvalRun.objects.get(pk=run.pk).n == 16, SECONDS, "the row says so")
    run.refresh_from_db()
    assert run.documents == 40
    cancel_run(run)
    assert run.status == Status.RUNNING
    worker.join(SECONDS)
    run.refresh_from_db()
    assert (run.status, run.n, run.items.count()) == (Status.CANCELLED, 16, 16)
    assert run.summary["status"] == "failed" and run.acc is not None
    with pytest.raises(NotPossible, match="a run that is cancelled cannot be cancelled"):
        cancel_run(run)

    foreign.hold_after = None
    resume_run(run)
    assert run.status == Status.QUEUED
    tasks.execute_eval()
    run.refresh_from_db()
    assert (run.status, run.n, run.items.count()) == (Status.DONE, 40, 40)
    assert sum(foreign.asked.values()) == 40
    with pytest.raises(NotPossible, match="a run that is done cannot go on"):
        resume_run(run)


def test_a_run_whose_worker_stops_is_queued_again(sweep, foreign):
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    claimed, stopping = EvalRun.objects.claim_next(), threading.Event()
    worker = threading.Thread(target=in_a_thread, args=(claimed, stopping))
    worker.start()
    wait_until(lambda: run.items.count() == 16, SECONDS, "the first request's documents are stored")
    stopping.set()
    worker.join(SECONDS)
    run.refresh_from_db()
    assert run.status == Status.QUEUED


def after_one_request(sweep, foreign) -> tuple[EvalRun, threading.Thread]:
    """A run whose first request is answered and stored, and what supervises it."""
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    claimed = EvalRun.objects.claim_next()
    worker = threading.Thread(target=in_a_thread, args=(claimed, threading.Event()))
    worker.start()
    wait_until(lambda: EvalRun.objects.get(pk=run.pk).n == 16, SECONDS, "the first request's documents are stored")
    return run, worker


def test_the_database_may_fail_for_a_while(sweep, foreign, caplog):
    run, worker = after_one_request(sweep, foreign)
    with out_of_reach("benchmarks_evalrun"):
        wait_until(lambda: "goes on, though the database fails" in caplog.text, SECONDS, "a heartbeat has failed")
    cancel_run(run)
    worker.join(SECONDS)
    run.refresh_from_db()
    assert (run.status, run.n, run.items.count()) == (Status.CANCELLED, 16, 16)


def test_a_run_whose_row_is_out_of_reach_for_too_long_can_go_on(sweep, foreign, monkeypatch):
    monkeypatch.setattr(watching, "LOST_SECONDS", 2.0)
    run, worker = after_one_request(sweep, foreign)
    with out_of_reach("benchmarks_evalrun"):
        worker.join(SECONDS)
        assert not worker.is_alive()
        assert not [pid for pid in descendants(os.getpid()) if str(run.folder).encode() in words_of(pid)]
    EvalRun.objects.update(heartbeat=timezone.now() - timedelta(seconds=LOST_SECONDS + 1))
    tasks.tend_evals()
    run.refresh_from_db()
    assert run.status == Status.LOST

    foreign.hold_after = None
    resume_run(run)
    tasks.execute_eval()
    run.refresh_from_db()
    assert (run.status, run.error, run.n, run.items.count()) == (Status.DONE, "", 40, 40)


def in_a_thread(run: EvalRun, stopping: threading.Event) -> None:
    try:
        execute(run, stopping)
    finally:
        connection.close()


def in_another_process(redis_url: str) -> subprocess.Popen[bytes]:
    """A worker that executes one run, with our database."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "rwkvsite.settings",
        "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
        "REDIS_URL": redis_url,
        "VAR_DIR": str(settings.RWKV.var_dir),
    }
    code = "from benchmarks.evals.tasks import execute_eval; execute_eval()"
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    return subprocess.Popen(command, cwd=BASE_DIR, env=environment)


def test_a_worker_that_is_killed_leaves_a_lost_run_that_another_one_completes(sweep, foreign, redis_url):
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    worker = in_another_process(redis_url)
    try:
        wait_until(lambda: run.items.count() == 16, SECONDS, "the first request's documents are stored")
        commands = descendants(worker.pid)
        assert commands, "the eval is a process of its own"
    finally:
        worker.kill()
        worker.wait(SECONDS)
    wait_until(lambda: not any(map(is_running, commands)), SECONDS, "its command has died with it")
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    EvalRun.objects.update(heartbeat=timezone.now() - timedelta(seconds=LOST_SECONDS + 1))
    tasks.tend_evals()
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.LOST, "the worker that ran it died")

    foreign.hold_after = None
    resume_run(run)
    tasks.execute_eval()
    run.refresh_from_db()
    assert (run.status, run.error, run.n, run.summary["resumed"]) == (Status.DONE, "", 40, 16)
    assert sorted(run.items.values_list("doc", flat=True)) == list(range(40))
    assert run.acc == right_at(2) / 40
    assert sum(foreign.asked.values()) == len(foreign.asked) == 40, "no document is asked for twice"


def test_a_command_that_is_killed_is_named_by_its_signal(sweep, foreign):
    foreign.hold_after = 1
    (run,) = queue_sweep(sweep)
    claimed = EvalRun.objects.claim_next()
    worker = threading.Thread(target=in_a_thread, args=(claimed, threading.Event()))
    worker.start()
    wait_until(lambda: run.items.count() == 16, SECONDS, "the first request's documents are stored")
    (command,) = [pid for pid in descendants(os.getpid()) if str(run.folder).encode() in words_of(pid)]
    os.kill(command, signal.SIGKILL)
    worker.join(SECONDS)
    run.refresh_from_db()
    assert (run.status, run.error) == (Status.FAILED, "the command was ended by SIGKILL")


def words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):  # it ended just now
        return []


def test_a_run_that_cannot_be_supervised_leaves_no_command_behind(sweep, foreign):
    foreign.hold_after = 0
    (run,) = queue_sweep(sweep)
    claimed = EvalRun.objects.claim_next()
    worker = threading.Thread(target=in_a_thread, args=(claimed, threading.Event()))
    worker.start()
    wait_until(lambda: foreign.requests, SECONDS, "the command asks and gets no answer")
    with (run.folder / ITEMS).open("ab") as file:
        file.write(b"nonsense\n")
    worker.join(SECONDS)
    run.refresh_from_db()
    assert run.status == Status.FAILED
    assert run.error.startswith("DecodeError: ")
    assert not [pid for pid in descendants(os.getpid()) if str(run.folder).encode() in words_of(pid)]
