"""A load and an eval never run at the same time, whoever claims them, and whenever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from benchmarks import tasks as loads
from benchmarks.evals import tasks as evals
from benchmarks.evals.actions import queue_sweep
from benchmarks.evals.models import EvalRun
from benchmarks.models import Run, Status
from tests.benchmarks.rows import make_scenario, queue

pytestmark = pytest.mark.usefixtures("transactional_db", "redis_url")


@contextmanager
def just_before_the_claim(table: str, act: Callable[[], object]) -> Iterator[None]:
    """What another worker does after one has looked, and before its claim of a row of the table is written."""
    done = []

    def watch(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith(f'UPDATE "{table}"') and not done:
            done.append(sql)
            act()
        return execute(sql, *args)

    with connection.execute_wrapper(watch):
        yield
    assert done


def test_a_load_that_is_claimed_beside_an_eval_is_put_back(sweep):
    (run,), (eval_run,) = queue(make_scenario()), queue_sweep(sweep)
    with just_before_the_claim("benchmarks_run", EvalRun.objects.claim_next):
        loads.execute_run()
    run.refresh_from_db()
    eval_run.refresh_from_db()
    assert (run.status, run.started, eval_run.status) == (Status.QUEUED, None, Status.RUNNING)

    eval_run.end(Status.CANCELLED)
    assert Run.objects.claim_next() == run


def test_an_eval_that_is_claimed_beside_a_load_is_put_back(sweep):
    (run,), (eval_run,) = queue(make_scenario()), queue_sweep(sweep)
    with just_before_the_claim("benchmarks_evalrun", Run.objects.claim_next):
        evals.execute_eval()
    run.refresh_from_db()
    eval_run.refresh_from_db()
    assert (run.status, eval_run.status) == (Status.RUNNING, Status.QUEUED)

    run.end(Status.CANCELLED)
    assert EvalRun.objects.claim_next() == eval_run


def test_only_a_run_that_still_is_ours_is_put_back():
    queue(make_scenario())
    run = Run.objects.claim_next()
    Run.objects.update(supervisor="another")
    run.put_back()
    run.refresh_from_db()
    assert run.status == Status.RUNNING
