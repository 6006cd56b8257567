"""Runs of the real command against a mock server, executed beside the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connections
from django.utils import timezone

from benchmarks.models import Run, Scenario, Target
from benchmarks.models.runs import LOST_SECONDS
from benchmarks.processes import execute
from tests.benchmarks.rows import queue
from tests.loadgen.mock_server import Script, Step, script_body
from tests.service import wait_until

PATIENCE = 60.0


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
