"""Loads from the terminal, from the admin and from Celery beat: the same numbers wherever one looks, and a queue that
goes on whatever becomes of a run.

TEST_LOAD_FULL=1 measures all routes with 300 requests at 20 a second, and with 32 users; otherwise a few small loads.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import summaries
from benchmarks.models import Status
from benchmarks.models.runs import OPEN
from tests.loadgen.mock_server import Script, Step, running_mock_server, script_body
from tests.service import Service, wait_until
from tests.service_tests.clients import started
from tests.service_tests.console import Console, command

FULL = os.environ.get("TEST_LOAD_FULL") == "1"
PATIENCE = 120.0
INPUT_TOKENS, OUTPUT_TOKENS = 24, 12
LENGTHS = {"random_input_len": INPUT_TOKENS, "random_output_len": OUTPUT_TOKENS}
RATE = {"num_prompts": 300 if FULL else 20, "request_rate": 20}
USERS = {"num_prompts": 320 if FULL else 16, "users": 32 if FULL else 8}
BACKENDS = ("openai", "openai-chat", "rwkv-batch", "rwkv-big-batch")  # the last two are the native batch routes
LOADS = [(kind, backend) for backend in BACKENDS for kind in ("serve", "clients")]
if not FULL:
    LOADS = [("serve", "openai"), ("clients", "rwkv-batch")]

pytestmark = pytest.mark.timeout(900 if FULL else 300)  # each waits for several runs in turn


def profile_of(kind: str) -> dict[str, Any]:
    return {**LENGTHS, **(RATE if kind == "serve" else USERS)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    with started(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), SERVE_CELERY="true") as service:
        yield service


@pytest.fixture(scope="module")
def mock() -> Iterator[tuple[str, Callable[[], None]]]:
    """The URL of a server, and what ends it."""
    with ExitStack() as stack:
        yield stack.enter_context(running_mock_server()), stack.close


@pytest.fixture(scope="module")
def console(service: Service, mock: tuple[str, Callable[[], None]]) -> Console:
    here = {"base_url": service.url}
    scenarios = {
        f"{kind} {backend}": {"kind": kind, "profile": profile_of(kind), "target": {**here, "backend": backend}}
        for kind, backend in LOADS
    }
    scenarios["endless"] = {"profile": {**LENGTHS, "num_prompts": 5000, "request_rate": 10}, "target": here}
    for name in ("after a kill", "after a cancel", "after a dead target"):
        scenarios[name] = {"profile": {**LENGTHS, "num_prompts": 3}, "target": here}
    event = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    answer = script_body(Script(steps=[Step(write=f"{event}data: [DONE]\n\n")]))
    dying = {"num_prompts": 100, "request_rate": 10, "tokenizer": "none", "extra_body": answer}
    scenarios["dying"] = {"profile": dying, "target": {"base_url": mock[0], "model": "mock"}}
    return Console(service, scenarios)


def wait_for_end(console: Console, run: int) -> str:
    wait_until(lambda: console.run(run)["status"] not in OPEN, PATIENCE, f"run {run} is over")
    return console.run(run)["status"]


def wait_for_some_answers(console: Console, run: int) -> None:
    def some() -> bool:
        return json.loads(console.run(run)["progress"]).get("done", 0) >= 3

    wait_until(some, PATIENCE, f"requests of run {run} are done")


def from_terminal(service: Service, folder: Path, kind: str, backend: str) -> int:
    """Returns the primary key of the run; its files are in the folder."""
    options = {**profile_of(kind), "base_url": service.url, "backend": backend, "result": folder / "native.json"}
    options |= {"result_dir": folder, "result_filename": "vllm.json"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    said = command(service, "bench", kind, *words, "--save-result", "--disable-tqdm")
    stored = re.search(r"stored as run (\d+)", said)
    assert stored, said
    return int(stored[1])


def from_beat(console: Console, scenario: str) -> int:
    console.schedule_once(scenario, f"once: {scenario}")
    wait_until(lambda: console.runs_of(scenario, "schedule"), PATIENCE, "beat and worker have queued the run")
    return console.runs_of(scenario, "schedule")[-1]


def medians_of(records: list[dict[str, Any]]) -> dict[str, float]:
    """TTFT and E2EL in ms, from the times of the requests."""
    good = [record for record in records if not record["error"]]
    ends = {"ttft": "first_chunk", "e2el": "last_chunk"}
    return {name: 1000 * median(one[end] - one["sent"] for one in good) for name, end in ends.items()}


def assert_same_numbers_everywhere(console: Console, pk: int) -> dict[str, Any]:
    """The columns of the row, its requests, both JSON exports and the page. Returns the native result."""
    row, records = console.run(pk), console.records(pk)
    lines = [json.loads(line) for line in console.export(pk, "jsonl").splitlines()]
    native, exported = lines[0], [line for line in lines[1:] if line["phase"] != "warmup"]
    vllm = json.loads(console.export(pk, "vllm"))
    page = "".join(console.page(pk).split())

    summary = native["summary"]
    assert {name: row[name] for name in summaries.ALL_COLUMNS} == summaries.columns(summary)
    assert [one["sent"] for one in exported] == [one["sent"] for one in records]
    assert row["requests"] == len(records) == len(vllm["errors"]) == summary["requests"]["total"]
    assert vllm["completed"] == row["requests"] - row["failed"] == sum(not one["error"] for one in records)
    assert vllm["duration"] == row["duration"]
    good = [one for one in records if not one["error"]]  # one that was given up midway has tokens, too
    assert vllm["total_output_tokens"] == sum(one["output_tokens"] for one in good) == summary["tokens"]["output"]
    assert vllm["total_input_tokens"] == sum(one["prompt_tokens"] for one in good) == summary["tokens"]["input"]
    assert vllm["output_throughput"] == pytest.approx(vllm["total_output_tokens"] / row["duration"])
    of_all, measured = medians_of(records), medians_of([one for one in records if one["phase"] == "measure"])
    for name in ("ttft", "e2el"):
        assert vllm[f"median_{name}_ms"] == pytest.approx(of_all[name])
        assert row[f"{name}_median"] == pytest.approx(measured[name])

    shown = {
        f"{vllm['completed']:,} of {row['requests']:,}",
        f"{row['success_rate']:.1%}",
        f"{row['request_throughput']:,.2f}",
        *(f"{row[name]:,.1f}" for name in ("output_throughput", "ttft_median", "tpot_median", "e2el_median")),
        f"{row['duration']:,.1f}",
    }
    assert [words for words in shown if f"<strong>{words}</strong>".replace(" ", "") not in page] == []
    return native


@pytest.mark.parametrize(("kind", "backend"), LOADS)
def test_terminal_admin_and_beat_give_the_same_numbers_wherever_one_looks(
    service: Service, console: Console, tmp_path: Path, kind: str, backend: str
):
    scenario = f"{kind} {backend}"
    runs = {"terminal": from_terminal(service, tmp_path, kind, backend), "admin": console.run_now(scenario)}
    assert wait_for_end(console, runs["admin"]) == Status.DONE, console.run(runs["admin"])["error"]
    runs["schedule"] = from_beat(console, scenario)
    assert wait_for_end(console, runs["schedule"]) == Status.DONE, console.run(runs["schedule"])["error"]

    results = {}
    for origin, pk in runs.items():
        row = console.run(pk)
        assert (row["origin"], row["status"], row["error"]) == (origin, Status.DONE, "")
        results[origin] = assert_same_numbers_everywhere(console, pk)
        print(f"{scenario}, {origin}: {json.dumps({name: row[name] for name in summaries.ALL_COLUMNS})}")

    written = json.loads((tmp_path / "native.json").read_text())
    assert {name: written[name] for name in results["terminal"]} == results["terminal"]
    vllm = json.loads(console.export(runs["terminal"], "vllm"))
    on_disk = json.loads((tmp_path / "vllm.json").read_text())
    assert on_disk == {name: vllm[name] for name in on_disk}
    # What was asked and answered does not depend on who started it.
    counts = [profile_of(kind)["num_prompts"], 0]
    for result in results.values():
        summary, reference = result["summary"], results["terminal"]["summary"]
        assert [summary["requests"]["completed"], summary["requests"]["failed"]] == counts
        assert summary["tokens"] == reference["tokens"]
        assert summary["tokens"]["output"] == OUTPUT_TOKENS * counts[0]
        own = {"allow_host", "result", "tags"}
        told = [{k: v for k, v in one["profile"].items() if k not in own} for one in (result, results["terminal"])]
        assert told[0] == told[1]


def test_a_killed_worker_leaves_a_lost_run_and_its_successor_executes_what_the_schedule_queued(
    service: Service, console: Console
):
    lost = console.run_now("endless")
    wait_for_some_answers(console, lost)
    waiting = from_beat(console, "after a kill")
    assert console.run(waiting)["status"] == Status.QUEUED
    before = service.child("worker")
    assert before
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service.child("worker") not in (None, before), PATIENCE, "there is another worker")
    assert wait_for_end(console, lost) == Status.LOST
    assert wait_for_end(console, waiting) == Status.DONE
    wait_until(lambda: console.run(lost)["requests"], PATIENCE, "what it measured is stored")
    row = console.run(lost)
    assert row["error"] == "the process that supervised it died"
    assert 3 <= row["requests"] == len(console.records(lost)) < 5000
    assert_same_numbers_everywhere(console, lost)


def test_the_next_run_starts_after_a_cancelled_one(console: Console):
    cancelled, waiting = console.run_now("endless"), console.run_now("after a cancel")
    wait_for_some_answers(console, cancelled)
    console.cancel(cancelled)
    assert wait_for_end(console, cancelled) == Status.CANCELLED
    assert wait_for_end(console, waiting) == Status.DONE
    assert console.run(cancelled)["requests"] == len(console.records(cancelled)) >= 3


def test_the_next_run_starts_after_one_whose_target_died(console: Console, mock: tuple[str, Callable[[], None]]):
    failed, waiting = console.run_now("dying"), console.run_now("after a dead target")
    wait_for_some_answers(console, failed)
    mock[1]()
    assert wait_for_end(console, failed) == Status.FAILED
    assert "the last 5 requests failed, most with connect" in console.run(failed)["error"]
    assert wait_for_end(console, waiting) == Status.DONE
    assert len(console.records(failed)) == console.run(failed)["requests"] == 100
    assert console.run(failed)["failed"] < 100
