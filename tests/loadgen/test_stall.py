"""What a server that stands still looks like: to those who come by the clock, and to those who wait for their answers.

A load that waits for answers does not come while nothing is answered, and so does not see what others would have had
to wait (coordinated omission): only the time from the schedule tells of it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest

from benchmarks.loadgen import runner
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.records import RunResult
from benchmarks.loadgen.request_metrics import e2el_sched, ttft, ttft_sched
from benchmarks.loadgen.watch import Live
from tests.loadgen.mock_server import Script, Step, running_mock_server, script_body

STALL_SECONDS = 5.0
RATE = 20.0
REQUESTS = 200
SLOTS = 2  # in both loads: requests that the server may have at once
SLOW_SECONDS = STALL_SECONDS / 2
ANSWER = 'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
PATIENCE = 60.0


class Loads:
    """Several runs at once, and a moment at which all of them are well under way."""

    def __init__(self, count: int) -> None:
        self.running = threading.Barrier(count + 1)
        self.epochs: dict[str, float] = {}

    def report_of(self, kind: str) -> Callable[[Live], None]:
        def report(live: Live) -> None:
            if live.state != "running" or not live.elapsed:
                return
            # The run's start by our clock: what is late in hearing of it only seems to have begun later.
            self.epochs[kind] = min(self.epochs.get(kind, float("inf")), time.monotonic() - live.elapsed)
            if live.done >= 5 and not reached.is_set():
                reached.set()
                self.running.wait(PATIENCE)

        reached = threading.Event()
        return report


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_mock_server() as url:
        yield url


def test_a_stall_of_the_server_shows_in_the_latency_from_schedule_alone(server: str) -> None:
    small = {"random_input_len": 4, "random_output_len": 1, "tokenizer": "none", "workers": 1}
    script = script_body(Script(steps=[Step(write=ANSWER)]))
    by_clock = {"request_rate": RATE, "burstiness": "inf", "num_prompts": REQUESTS, "max_concurrency": SLOTS}
    by_users = {"users": SLOTS, "ramp_up_time": 0.0, "think_time": 0.05, "duration": REQUESTS / RATE}
    loads = Loads(2)

    def load(kind: str, options: dict[str, object]) -> RunResult:
        profile = checked_profile({"base_url": [server], "extra_body": script, **small, **options})
        return runner.run(profile, kind=kind, report=loads.report_of(kind))

    with ThreadPoolExecutor() as pool:
        open_run, closed_run = pool.submit(load, "serve", by_clock), pool.submit(load, "clients", by_users)
        loads.running.wait(PATIENCE)
        with urlopen(f"{server}/stall/{STALL_SECONDS}") as response:
            begun, ended = json.load(response)
        clock, users = open_run.result(), closed_run.result()

    assert clock.summary["requests"]["completed"] == REQUESTS
    start, end = (moment - loads.epochs["serve"] for moment in (begun, ended))
    due = [record for record in clock.records if start + 0.1 < (record.intended or 0.0) < end]
    assert len(due) > STALL_SECONDS * RATE / 2, "they came, or would have come, while nothing was answered"
    for record in due:
        assert record.intended is not None
        waited = end - record.intended
        assert (ttft_sched(record) or 0.0) >= waited and (e2el_sched(record) or 0.0) >= waited
    assert clock.summary["latency_ms"]["ttft_sched"]["max"] > 1000 * 0.9 * STALL_SECONDS
    slow = [record for record in clock.records if (ttft_sched(record) or 0.0) > SLOW_SECONDS]
    assert len(slow) > 0.4 * STALL_SECONDS * RATE, "those that came in its first half waited for its second"

    for run in (clock, users):
        slow = [record for record in run.records if (ttft(record) or 0.0) > SLOW_SECONDS]
        assert 1 <= len(slow) <= SLOTS, "from the send, nobody waited but those that the server had already"
    assert users.summary["latency_ms"]["ttft"]["median"] < 1000
    assert users.summary["latency_ms"]["ttft_sched"]["count"] == 0, "and nobody can tell when they would have come"
