"""Rows that the tests of the benchmarks begin with."""

from benchmarks.actions import queue_scenario
from benchmarks.models import Origin, Run, Scenario, Status, Target
from benchmarks.storage import store_result
from tests.benchmarks.results import make_result


def make_scenario(name: str = "nightly", base_url: str = "http://127.0.0.1:1", **fields) -> Scenario:
    target, _ = Target.objects.get_or_create(name=f"target of {name}", defaults={"base_url": base_url})
    profile = fields.pop("profile", {"num_prompts": 20, "request_rate": 10})
    return Scenario.objects.create(name=name, target=target, profile=profile, **fields)


def queue(scenario: Scenario, origin: Origin = Origin.ADMIN) -> list[Run]:
    """Queue its runs, without telling a worker."""
    return queue_scenario(scenario, origin=origin, nudging=False)


def finish(run: Run, **result) -> Run:
    """The run as if its command had measured this (see make_result)."""
    store_result(make_result(run.key, **result), run)
    run.end(Status.DONE)
    return run


def measured_run(scenario: Scenario, **result) -> Run:
    return finish(queue(scenario)[0], **result)
