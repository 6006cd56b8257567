"""Runs of the real command against a mock server, executed beside the test."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.db import connection, connections
from django.utils import timezone

from benchmarks.models import Run, Scenario, Target
from benchmarks.models.runs import LOST_SECONDS
from benchmarks.processes import execute
from tests.benchmarks.rows import queue
from tests.loadgen.mock_server import Script, Step, script_body
from tests.service import wait_until

PATIENCE = 60.0
LOOK_SECONDS = 1.0


def answer(seconds: float) -> dict[str, object]:
    """Four tokens, each after a wait of so long."""
    event = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    steps = [Step(wait=seconds / 4, write=event) for _ in range(4)]
    return script_body(Script(steps=[*steps, Step(write="data: [DONE]\n\n")]))


def mock_scenario(url: str, seconds: float = 0.02, name: str = "mock", **profile) -> Scenario:
    """Requests to the mock server, which takes so long for each."""
    target, _ = Target.objects.get_or_create(name=name, defaults={"base_url": url, "model": "mock"})
    options = {"num_prompts": 600, "request_rate": 20, "random_input_len": 8, "tokenizer": "none"}
    given = {**options, "extra_body": answer(seconds), **profile}
    return Scenario.objects.create(name=name, target=target, profile=given)


@contextmanager
def executing(run: Run, stopping: threading.Event) -> Iterator[None]:
    """The claimed run is executed beside us, as by a worker; at the end it is over."""

    def work() -> None:
        try:
            execute(Run.objects.get(pk=run.pk), stopping)  # a row of its own: we look at ours meanwhile
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def wait_for(run: Run, condition: Callable[[Run], object], what: str) -> None:
    def holds() -> object:
        run.refresh_from_db()
        return condition(run)

    wait_until(holds, PATIENCE, what)


def some_done(run: Run) -> bool:
    return run.progress.get("done", 0) >= 2


def claimed(scenario: Scenario) -> Run:
    queue(scenario)
    run = Run.objects.claim_next()
    assert run is not None
    return run


def be_silent(run: Run) -> None:
    """As if its supervisor had said nothing for too long."""
    Run.objects.filter(pk=run.pk).update(heartbeat=timezone.now() - timedelta(seconds=LOST_SECONDS + 1))


def twice_at_once(act: Callable[[], object], table: str) -> list[BaseException | None]:
    """What two calls at the same time raise. When one has looked whether the table has such a row, it waits for the
    other to have looked, too; not for long, as the other may wait for what the first has locked."""
    begin, looked = threading.Barrier(2), threading.Barrier(2)

    def watch(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        if f'AS "a" FROM "{table}"' in sql:  # as `exists` asks
            with suppress(threading.BrokenBarrierError):
                looked.wait(LOOK_SECONDS)
        return result

    def call() -> None:
        try:
            begin.wait(PATIENCE)
            with connection.execute_wrapper(watch):
                act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor() as pool:
        return [future.exception(PATIENCE) for future in [pool.submit(call) for _ in range(2)]]


@contextmanager
def out_of_reach(table: str) -> Iterator[None]:
    """Whatever asks for rows of the table gets an error from the database."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")
