"""Whole loads against a server whose answers follow a script: who sends what and when, limits, and all ways to end."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from benchmarks.loadgen import plan, probe, results, runner
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.options import MASK, Profile, checked_profile
from benchmarks.loadgen.records import ErrorClass, Phase, RunResult
from benchmarks.loadgen.target import find_backend, make_request, make_target
from benchmarks.loadgen.watch import Live
from tests.loadgen.mock_server import Script, Step, running_mock_server, script_body, written
from tests.service import descendants, free_port

ANSWER = 'data: {"choices": [{"text": "a"}]}\n\n'
END = 'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
QUICK = Script(steps=[Step(write=ANSWER), Step(write=ANSWER + END)])
ENDLESS = Script(steps=[Step(write=ANSWER), Step(wait=600, write=END)])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_mock_server() as url:
        yield url


def profile(url: str, script: Script = QUICK, **values: Any) -> Profile:
    """Of one worker, without a tokenizer, unless the test says otherwise: starting them takes the time."""
    small = {"random_input_len": 4, "random_output_len": 2, "tokenizer": "none", "workers": 1}
    return checked_profile({"base_url": [url], "extra_body": script_body(script), **small, **values})


def load(url: str, script: Script = QUICK, **values: Any) -> RunResult:
    return runner.run(profile(url, script, **values), kind="serve")


def test_an_open_loop_sends_each_request_once_and_never_early(server: str):
    result = load(server, num_prompts=40, request_rate=100, workers=2, num_warmups=3)
    warmups = [record for record in result.records if record.phase is Phase.WARMUP]
    sent = [record for record in result.records if record.phase is Phase.MEASURE]
    assert [record.index for record in sent] == list(range(40))
    assert {record.worker for record in sent} == {0, 1}
    assert all(record.succeeded and record.sent >= record.intended for record in sent)
    assert [record.intended for record in sent] == plan.make_plan(
        profile(server, num_prompts=40, request_rate=100)
    ).times
    assert [record.index for record in warmups] == [-3, -2, -1]
    assert all(record.succeeded and record.done < 0 for record in warmups)
    assert result.summary["requests"] == {
        "total": 40, "completed": 40, "failed": 0, "cancelled": 0, "warmup": 3, "measured": 40
    }  # fmt: skip
    assert not result.cancelled and result.environment["ended_by"] == "schedule"


def test_waiting_for_a_slot_shows_in_the_latency_from_schedule(server: str):
    slow = Script(steps=[Step(wait=0.1, write=ANSWER + END)])
    result = load(server, slow, num_prompts=8, request_rate=100, burstiness="inf", max_concurrency=1)
    last = max(result.records, key=lambda record: record.sent)
    assert last.sent - last.intended > 7 * 0.1 - 8 / 100
    assert result.summary["concurrency"]["max"] == 1
    assert result.summary["latency_ms"]["ttft_sched"]["max"] > 1000 * (8 * 0.1 - 8 / 100)
    assert result.health.achieved_send_ratio is None  # the bound is not the client's fault


def test_users_wait_for_their_answers_and_each_prompt_is_used_once(server: str):
    result = load(server, users=3, num_prompts=10, ramp_up_time=0.0, keep_text=True)
    by_user = {user: [record for record in result.records if record.user == user] for user in range(3)}
    assert [len(records) for records in by_user.values()] == [4, 3, 3]
    for records in by_user.values():
        ordered = sorted(records, key=lambda record: record.sent)
        assert all(later.sent >= earlier.done for earlier, later in pairwise(ordered))
    assert sorted(record.index for record in result.records) == list(range(10))
    assert {record.text for record in result.records} == {"aa"}


def test_a_users_sequence_depends_on_the_seed_and_the_user_alone(server: str):
    def orders(users: int, seed: int) -> list[list[int]]:
        values = {"users": users, "num_prompts": 20, "seed": seed, "allow_repetitive_requests": True}
        return [user.order for user in plan.make_plan(profile(server, **values)).users]

    assert orders(3, 1) == orders(5, 1)[:3]
    assert orders(3, 1) != orders(3, 2)
    assert orders(2, 1)[0] != orders(2, 1)[1]
    assert sorted(orders(1, 1)[0]) == list(range(20))


def test_the_duration_ends_a_load_and_the_grace_what_still_runs(server: str):
    result = load(server, ENDLESS, users=2, duration=0.5, grace=0.2, ramp_up_time=0.0)
    assert [record.error for record in result.records] == [ErrorClass.CANCELLED] * 2
    assert all(len(record.chunks) == 1 for record in result.records)
    assert not result.cancelled and result.environment["ended_by"] == "duration"


def test_requests_that_are_given_up_midway_are_those_that_the_seed_draws(server: str):
    slow = Script(steps=[Step(write=ANSWER), Step(wait=1.0, write=END)])
    runs = [load(server, slow, num_prompts=12, cancel_fraction=0.5, cancel_after=0.3) for _ in range(2)]
    given_up = [{record.index for record in run.records if record.error is ErrorClass.CANCELLED} for run in runs]
    assert given_up[0] == given_up[1] and 0 < len(given_up[0]) < 12
    assert runs[0].summary["requests"]["completed"] == 12 - len(given_up[0])


def test_too_many_errors_end_a_load(server: str):
    result = load(server, Script(status=500), num_prompts=5000, request_rate=200, max_errors=5)
    assert result.environment["ended_by"] == "max_errors"
    assert 5 <= len(result.records) < 5000
    # One may have been due in the moment of the end, and was never sent.
    assert {record.error for record in result.records if record.sent is not None} == {ErrorClass.HTTP_5XX}


def test_a_cancelled_load_keeps_what_there_was(server: str):
    heard: list[Live] = []
    result = runner.run(
        profile(server, ENDLESS, num_prompts=3, request_id_prefix="cancelled-"),
        kind="serve",
        report=lambda live: heard.append(msgspec.structs.replace(live)),
        cancelled=lambda: all(written(server, f"cancelled-{number}") for number in range(3)),
    )
    assert result.cancelled
    assert [record.error for record in result.records] == [ErrorClass.CANCELLED] * 3
    assert all(record.chunks for record in result.records)
    assert {"preparing", "running"} <= {live.state for live in heard}
    assert heard[-1].failed == 3 and heard[-1].in_flight == 0


def test_a_worker_that_dies_does_not_take_the_others_with_it(server: str):
    killed = threading.Event()

    def kill_one(live: Live) -> None:
        if live.sent == 4 and not killed.is_set():
            os.kill(min(workers()), signal.SIGKILL)
            killed.set()

    result = runner.run(
        profile(server, ENDLESS, num_prompts=4, workers=2), kind="serve", report=kill_one, cancelled=killed.is_set
    )
    assert len(result.records) == 2
    assert result.health.verdict == "client-limited"
    assert "died, and its records with it" in result.health.reasons[-1]


def test_a_client_that_cannot_send_so_fast_says_that_it_was_the_limit(server: str):
    """Forty thousand requests a second are more than any single process sends."""
    result = load(server, num_prompts=400, request_rate=40_000, burstiness="inf")
    assert result.health.verdict == "client-limited"
    reasons = " and ".join(result.health.reasons)
    assert "1 request in 100 was sent" in reasons and "of the asked rate was sent" in reasons
    assert result.summary["send_rate"]["offered"] == pytest.approx(40_000)
    assert result.summary["send_rate"]["achieved"] < 0.99 * 40_000
    assert result.health.achieved_send_ratio == result.summary["achieved_send_ratio"] < 0.99


def workers() -> list[int]:
    """The load's processes below this one."""
    return [
        found
        for found in descendants(os.getpid())
        if b"benchmarks.loadgen.worker" in Path(f"/proc/{found}/cmdline").read_bytes().split(b"\0")
    ]


def test_a_server_that_does_not_answer_is_not_loaded():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(probe.NotReady, match=rf"{url}/v1/completions did not answer within 0\.1 s: connect"):
        load(url, ready_check_timeout_sec=0.1)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"backend": "openai-chat", "dataset_name": "synthetic_conversations", "users": 1, "num_conversations": 1},
        {"backend": "rwkv-state", "dataset_name": "synthetic_conversations", "users": 1, "stateful": True},
    ],
    ids=["text", "messages", "turns of a session"],
)
def test_readiness_is_asked_with_a_prompt_that_is_not_of_the_load(values: dict[str, Any]):
    """A server that keeps what it was sent would answer the load's own first prompt from it."""
    made = plan.make_plan(profile("http://127.0.0.1:1", num_prompts=2, **values))
    first = plan.first_prompt(profile("http://127.0.0.1:1", **values), made)
    asked = plan.ready_prompt(first, "run")
    assert (asked.text is None, asked.messages is None) == (first.text is None, first.messages is None)
    assert (asked.text, asked.messages) != (first.text, first.messages)
    assert (asked.session is None) == (first.session is None)
    assert asked.session is None or asked.session != first.session


def test_the_load_begins_with_what_the_server_was_not_sent_before(server: str):
    urlopen(f"{server}/prompts").close()
    load(server, num_prompts=3, ready_check_timeout_sec=5, num_warmups=2)
    with urlopen(f"{server}/prompts") as response:
        asked = json.load(response)
    assert len(asked) == 1 + 2 + 3
    assert len(set(asked)) == len(asked)


def test_a_prompt_that_the_back_end_cannot_carry_is_refused_ahead_of_the_load(server: str):
    with pytest.raises(BadOption, match="sends text or token ids, not messages"):
        load(server, dataset_name="synthetic_conversations", users=1)


def test_an_unknown_slo_is_refused(server: str):
    with pytest.raises(BadOption, match=r"--goodput: .*speed"):
        load(server, goodput={"speed": 3})


def test_several_servers_and_models_are_taken_in_turn():
    values = {"base_url": ["http://127.0.0.1:1", "http://127.0.0.1:2/"], "lora_modules": ["x", "y", "z"]}
    target = make_target(checked_profile({**values, "lora_assignment": "round-robin"}), run_id="0", synthetic=True)
    requests = [make_request(target, find_backend("openai", ""), Prompt(text="t"), index) for index in range(4)]
    assert [request.url for request in requests] == [
        "http://127.0.0.1:1/v1/completions",
        "http://127.0.0.1:2/v1/completions",
    ] * 2
    assert [msgspec.json.decode(request.body)["model"] for request in requests] == ["x", "y", "z", "x"]


def test_a_trace_is_replayed_at_its_own_times(server: str, tmp_path: Path):
    rows = [{"timestamp": 100 * n, "input_length": 4, "output_length": 2, "hash_ids": []} for n in (7, 5, 6)]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    trace = profile(server, dataset_name="timed_trace", dataset_path=str(path), time_multiplier=0.5)
    assert plan.make_plan(trace).times == pytest.approx([0.0, 0.05, 0.1])


@pytest.mark.parametrize(
    ("values", "times"),
    [
        ({"num_prompts": 3}, [0.0] * 3),
        ({"num_prompts": 4, "request_rate": 2, "burstiness": "inf"}, [0.5, 1.0, 1.5, 2.0]),
        ({"duration": 2, "request_rate": 2, "burstiness": "inf"}, [0.5, 1.0, 1.5]),
        ({"stages": ["2:1", "4:0.5"], "burstiness": "inf"}, [0.5, 1.0, 1.25, 1.5]),
    ],
)
def test_the_options_give_the_schedule(server: str, values: dict[str, Any], times: Sequence[float]):
    assert plan.make_plan(profile(server, **values)).times == pytest.approx(times)


def test_a_ramp_without_a_length_ends_with_its_last_request(server: str):
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 0, "ramp_up_end_rps": 20, "burstiness": "inf"}
    made = plan.make_plan(profile(server, num_prompts=100, **ramp))
    assert made.times[-1] == pytest.approx(10)
    assert [change.rate for change in made.rate_changes][-1] == pytest.approx(20)


def test_what_counts_as_a_stall_is_an_option(server: str):
    pausing = Script(steps=[Step(write=ANSWER), Step(wait=0.3, write=ANSWER + END)])
    assert load(server, pausing, num_prompts=2, stall_ms=1).summary["stalls"] == {"threshold_ms": 1, "count": 2}


def test_phases_leave_out_how_a_load_begins_and_ends(server: str):
    result = load(server, num_prompts=20, request_rate=40, burstiness="inf", warmup_seconds=0.2, cooldown_seconds=0.1)
    assert Counter(record.phase for record in result.records) == {Phase.WARMUP: 7, Phase.MEASURE: 9, Phase.DRAIN: 4}


def test_a_result_is_written_whole_and_comes_back_equal(server: str, tmp_path: Path):
    result = load(server, num_prompts=2, header={"X-Api-Key": "the secret"})
    path = tmp_path / "deep" / "result.json"
    results.save(result, path)
    assert results.load(path) == result
    assert result.profile["header"] == {"X-Api-Key": MASK}
    assert b"the secret" not in path.read_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no result of a run"):
        results.load(path)


@pytest.mark.parametrize(("limit", "requests"), [({}, 9), ({"num_prompts": 5}, 5), ({"duration": 1}, None)])
def test_how_many_turns_there_will_be_is_known_unless_time_ends_them(limit: dict[str, Any], requests: int | None):
    talk = {"users": 2, "dataset_name": "synthetic_conversations", "num_conversations": 3, "num_turns": 3}
    made = plan.make_plan(profile("http://127.0.0.1:1", **talk, **limit))
    assert made.requests == requests
    assert [user.order for user in made.users] == [[0, 2], [1]]
