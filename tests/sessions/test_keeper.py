"""The engine's way to the database: a real model, a real database, and what was in memory gone."""

import io
import threading
from pathlib import Path

import pytest
import torch
from django.db import DatabaseError, connection

from inference.bus.messages import Generate, History, Sampling
from inference.engine.engine import Engine
from inference.engine.state_cache import SavedState, state_bytes
from inference.engine.torch_backend import TorchBackend
from rwkvsite.env import parse
from sessions import keeper
from sessions.initial_states import keep_state, shape_of
from sessions.keeper import StateKeeper
from sessions.levels import Levels
from sessions.models import InitialStateData, Session, Snapshot, SnapshotData
from sessions.state_file import write_state
from sessions.store import Head, NewTurn, commit_turn, read_head
from tests.service import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CONFIG = {"STATE_L1_SLOTS": "1", "STATE_L2_ENTRIES": "1", "ENGINE_SLOTS": "2"}


class Process:
    """What an engine process has, on a model that the tests share."""

    def __init__(self, backend: TorchBackend, **environment: str) -> None:
        self.backend = backend
        self.errors: list[Exception] = []
        self.levels = Levels(backend, parse(CONFIG | environment), self.errors.append)
        self.engine = Engine(backend, step_tokens=64, states=self.levels.cache)

    def ask(self, prompt: list[int], history: History, max_tokens: int = 4, **more) -> list[int]:
        request = Generate(
            web="w",
            row=1,
            model="",
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=Sampling(temperature=0.0),
            stop_ids=[],
            history=history,
            keep=True,
            **more,
        )
        self.engine.submit(request)
        tokens: list[int] = []
        while self.engine.has_work:
            for _web, output in self.engine.step():
                assert not output.error, output.error
                tokens += output.tokens
        return tokens

    def turn(self, key: str, prompt: list[int], owner: str = "me") -> list[int]:
        head = read_head(owner, key, self.backend.model)
        reply = self.ask(prompt, head.history)
        commit(head, prompt, reply)
        return reply

    def state(self, history: History) -> dict[str, torch.Tensor]:
        """The state of a history, which is fed to the end."""
        entry = self.levels.cache.find(history.digest)
        assert entry is not None
        assert not entry.pending
        return entry.state or self.backend.export_state(entry.slot)


def commit(head: Head, prompt: list[int], reply: list[int]) -> None:
    commit_turn(head, NewTurn(prompt=prompt, reply=reply, sampling={}, finish_reason="length", duration=0.0))


@pytest.fixture(scope="module")
def backend(tiny_checkpoint: Path) -> TorchBackend:
    return TorchBackend(tiny_checkpoint, slots=3)


@pytest.fixture
def start(backend):
    running: list[Process] = []

    def start(**environment: str) -> Process:
        running.append(Process(backend, **environment))
        return running[-1]

    yield start
    for process in running:
        process.levels.close()


def alone(start, *turns: list[int]) -> list[list[int]]:
    """The replies to these prompts in a session that never leaves the device."""
    process = start(STATE_L1_SLOTS="2")
    return [process.turn(f"alone {turns}", prompt, owner="other") for prompt in turns]


def test_a_stopped_engine_has_written_every_state_and_the_next_one_reads_them(start):
    prompts = {key: ([ord(key), 6], [7], [8]) for key in "abcd"}
    expected = {key: alone(start, *turns) for key, turns in prompts.items()}
    process = start()
    for key, turns in prompts.items():
        assert [process.turn(key, prompt) for prompt in turns[:2]] == expected[key][:2]
    process.levels.close()
    assert Snapshot.objects.filter(session__owner="me", turn=2).count() == 4
    after = start()
    fed = after.engine.counters.prompt_tokens
    assert {key: after.turn(key, turns[2]) for key, turns in prompts.items()} == {
        key: replies[2] for key, replies in expected.items()
    }
    assert after.engine.counters.prompt_tokens - fed == 4 * 2, "each: the token that was pending, and the prompt"


def test_a_saved_state_is_brought_to_memory_before_it_is_wanted(start):
    expected = alone(start, [5, 6], [7])
    before = start()
    assert before.turn("a", [5, 6]) == expected[0]
    before.levels.close()
    after = start()
    cache, history = after.levels.cache, read_head("me", "a", after.backend.model).history
    cache.warm(history)

    def is_there() -> bool:
        cache.take_warmed()
        return history.digest in cache.host_names()

    wait_until(is_there, 10, "the state is in L2")
    assert after.turn("a", [7]) == expected[1]
    assert cache.counters.host_hits == 1


def test_a_killed_engine_loses_no_turn(start):
    expected = alone(start, [5, 6], [7], [8])
    killed = start()
    assert [killed.turn("a", prompt) for prompt in ([5, 6], [7])] == expected[:2]
    assert not Snapshot.objects.filter(session__key="a").exists()
    assert start().turn("a", [8]) == expected[2]


def test_a_session_behind_an_initial_state_is_rebuilt_with_it(start, backend):
    file, shape = io.BytesIO(), shape_of(backend.model)
    noise = torch.Generator().manual_seed(1)
    values = torch.randn(2 * 2 * 128 + 2 * 2 * 64 * 64, generator=noise).numpy().tobytes()
    write_state(file, shape, dtypes=["float32"] * 2, data=values, pending=[9], model_fingerprint="")
    state = keep_state("me", backend.model, "tuned.pth", file, file.tell())
    turns = ([5, 6], [7], [8])

    def play(process: Process, key: str, *prompts: list[int]) -> list[list[int]]:
        replies = []
        for prompt in prompts:
            head = read_head("me", key, backend.model, state)
            replies.append(process.ask(prompt, head.history))
            commit(head, prompt, replies[-1])
        return replies

    expected = play(start(STATE_L1_SLOTS="2"), "stays", *turns)
    assert expected != alone(start, *turns)
    assert play(start(), "moves", *turns[:2]) == expected[:2]
    Snapshot.objects.all().delete()
    assert play(start(), "moves", turns[2]) == expected[2:]
    InitialStateData.objects.update(blob=b"damaged")
    with pytest.raises(AssertionError, match="the session's state cannot be loaded now"):
        play(start(), "moves", [9])


def test_states_move_through_all_levels_while_they_are_used(start):
    prompts = {key: ([ord(key)], [6], [7]) for key in "abcde"}
    expected = {key: alone(start, *turns) for key, turns in prompts.items()}
    process = start()
    for number in range(3):
        for key, turns in prompts.items():
            assert process.turn(key, turns[number]) == expected[key][number]
    wait_until(lambda: Snapshot.objects.filter(session__key="a").exists(), 10, "an evicted state is written")
    assert process.levels.cache.counters.loads == 10


def test_a_damaged_snapshot_is_rebuilt_from_the_log(start):
    expected = alone(start, [5], [6])
    process = start()
    process.turn("a", [5])
    process.levels.close()
    SnapshotData.objects.update(blob=b"not a state")
    assert start().turn("a", [6]) == expected[1]


def test_a_turn_that_was_not_committed_has_no_snapshot(start, monkeypatch):
    monkeypatch.setattr(keeper, "LAST_COMMIT_SECONDS", 0.3)
    process = start()
    process.ask([5], read_head("me", "a", process.backend.model).history)
    process.levels.close()
    assert not Session.objects.filter(key="a").exists()
    assert not Snapshot.objects.filter(session__owner="me", session__key="a").exists()


def test_a_turn_that_is_committed_a_little_later_has_one(start, monkeypatch):
    monkeypatch.setattr(keeper, "LAST_COMMIT_SECONDS", 5.0)  # however long the commit takes
    process = start()
    head = read_head("me", "late", process.backend.model)
    reply = process.ask([5], head.history)
    closing = threading.Thread(target=process.levels.close)
    closing.start()
    commit(head, [5], reply)
    closing.join()
    assert Snapshot.objects.filter(session__key="late").exists()


def test_a_database_that_refuses_for_a_while_delays_snapshots(start, monkeypatch):
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.05)
    process = start()
    process.turn("a", [5])
    refused = threading.Event()

    def refuse(execute, sql, params, many, context):
        if "rwkv_sessions_snapshot" in sql and not refused.is_set():
            refused.set()
            raise DatabaseError("database is locked")
        return execute(sql, params, many, context)

    store = keeper.store_snapshots

    def store_once_refused(*args, **kwargs):
        with connection.execute_wrapper(refuse):
            return store(*args, **kwargs)

    monkeypatch.setattr(keeper, "store_snapshots", store_once_refused)
    process.levels.close()
    assert refused.is_set()
    assert Snapshot.objects.filter(session__key="a").exists()


def test_what_cannot_be_written_is_reported_and_the_rest_is_written(backend):
    errors: list[Exception] = []
    good = backend.export_state(0)
    keeper = StateKeeper(backend.model, good, most_bytes=2**30, report=errors.append)
    try:
        for key, state in ("bad", {}), ("good", good):
            head = read_head("me", key, backend.model)
            commit(head, [5], [ord(key[0])])
            history = read_head("me", key, backend.model).history
            keeper.save(SavedState(digest=history.digest, tokens=history.tokens, pending=[], state=state))
            if not state:
                wait_until(lambda: errors, 10, "the error is reported")
        wait_until(lambda: Snapshot.objects.filter(session__key="good").exists(), 10, "the other one is written")
    finally:
        keeper.close(1.0)
    assert [type(error) for error in errors] == [KeyError]
    assert not Snapshot.objects.filter(session__key="bad").exists()


def test_a_state_that_comes_again_takes_the_place_of_the_one_that_waits(backend, caplog):
    state = backend.export_state(0)
    keeper = StateKeeper(backend.model, state, most_bytes=3 * state_bytes(state), report=lambda error: None)
    try:
        histories = []
        for key in ("again", "once"):
            head = read_head("me", key, backend.model)
            commit(head, [5], [ord(key[0])])
            histories.append(read_head("me", key, backend.model).history)
        again, once = (SavedState(digest=one.digest, tokens=one.tokens, pending=[], state=state) for one in histories)
        with keeper._changed:  # so that nothing is written meanwhile
            for _ in range(5):
                keeper.save(again)
            keeper.save(once)
        wait_until(lambda: Snapshot.objects.count() == 2, 10, "both are written")
    finally:
        keeper.close(1.0)
    assert "left out" not in caplog.text


# -- the exact state ----------------------------------------------------------------------------


def test_a_reply_cut_within_a_token_leaves_the_state_of_the_text_that_was_shown(start, backend):
    """What the web does: the reply was longer, and only `shown` of it counts."""
    process = start(STATE_L1_SLOTS="2")
    head = read_head("me", "cut", backend.model)
    prompt, shown = [5, 6, 7], [40, 41]
    process.ask(prompt, head.history, max_tokens=9)
    commit(head, prompt, shown)
    process.ask(prompt + shown, head.history, max_tokens=0)
    cut = process.state(read_head("me", "cut", backend.model).history)
    other = start(STATE_L1_SLOTS="2")
    plain = read_head("me", "plain", backend.model).history
    other.ask(prompt + shown, plain, max_tokens=0)
    expected = other.state(read_head("me", "cut", backend.model).history)
    for name, tensor in expected.items():
        assert torch.equal(cut[name], tensor), name


def test_a_branch_leaves_its_parents_state_bit_identical(start, backend):
    process = start(STATE_L2_ENTRIES="9")
    head = read_head("me", "parent", backend.model)
    commit(head, [5, 6], [7])
    process.ask([5, 6, 7], head.history, max_tokens=0)
    parent = read_head("me", "parent", backend.model).history
    parent.stays = True
    before = {name: tensor.clone() for name, tensor in process.state(parent).items()}
    for child in ([8], [9, 10], [11]):
        process.ask(child, parent)
    after = process.state(parent)
    assert all(torch.equal(before[name], after[name]) for name in before)
