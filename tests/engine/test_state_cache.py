"""Rows that begin behind a history: where their state comes from, and that it makes no difference.

The model here draws a digest of everything it was fed, so that one token missing, doubled or of
another row changes all that follows.
"""

import zlib
from collections.abc import Collection
from concurrent.futures import Future

import numpy as np
import pytest

from inference.bus.messages import END_OF_TEXT, Generate, History, RowOutput
from inference.engine.engine import Engine
from inference.engine.state_cache import Loaded, SavedState, StateCache
from inference.history import BLOCK, borders, extend, pack_ids, root, unpack_ids
from tests.engine.counting_backend import CountingBackend

ROOT = root("model", "owner")
OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlapped"])


class DigestBackend(CountingBackend):
    def next_token(self, fed: list[int]) -> int:
        return zlib.crc32(np.array(fed, dtype=np.uint32).tobytes()) % 60_000 + 1


class MemoryStore:
    """A durable store in memory. Loads are answered when the test says so, or at once."""

    def __init__(self) -> None:
        self.saved: dict[bytes, SavedState] = {}
        self.turns: dict[bytes, tuple[bytes, list[int]]] = {}  # digest -> the one before, and the turn's ids
        self.waiting: list[tuple[Future, Loaded]] = []
        self.at_once = True

    def load(self, history: History, cached: Collection[bytes]) -> Future:
        digest, tokens = history.digest, []
        while digest != ROOT and digest not in cached and digest not in self.saved:
            digest, ids = self.turns[digest]
            tokens = ids + tokens
        base = digest if digest in cached else b""
        saved = None if base else self.saved.get(digest)
        future: Future = Future()
        self.waiting.append((future, Loaded(base=base, saved=saved, tokens=tokens)))
        if self.at_once:
            self.answer()
        return future

    def answer(self) -> None:
        for future, loaded in self.waiting:
            future.set_result(loaded)
        self.waiting = []

    def save(self, saved: SavedState) -> None:
        self.saved[saved.digest] = saved


class Rig:
    """An engine with a state cache, and sessions on it."""

    def __init__(self, *, overlap: bool = False, parked: int = 2, host: int = 2, prefix_bytes: int = 0) -> None:
        self.backend = DigestBackend(slots=2 + parked, overlap=overlap)
        self.store = MemoryStore()
        self.states = StateCache(
            self.backend,
            slots=range(2, 2 + parked),
            host_entries=host,
            host_bytes=2**30,
            prefix_bytes=prefix_bytes,
            durable=self.store,
        )
        self.engine = Engine(self.backend, step_tokens=64, states=self.states)
        self._rows = 0

    @property
    def fed(self) -> int:
        """Prompt tokens that were prefilled so far."""
        return self.engine.counters.prompt_tokens

    def submit(self, prompt: list[int], history: History | None = None, **more) -> int:
        self._rows += 1
        history = history or History(digest=ROOT)
        more = {"keep": True, "max_tokens": 5, "stop_ids": []} | more
        self.engine.submit(
            Generate(web="web", row=self._rows, model="counting", prompt=prompt, history=history, **more)
        )
        return self._rows

    def finish(self) -> dict[int, list[RowOutput]]:
        outputs: dict[int, list[RowOutput]] = {}
        for _ in range(1000):
            for _web, output in self.engine.step():
                outputs.setdefault(output.row, []).append(output)
            if not self.engine.has_work:
                return outputs
        raise AssertionError("still at work")

    def ask(self, prompt: list[int], history: History | None = None, **more) -> list[int]:
        row = self.submit(prompt, history, **more)
        outputs = self.finish()[row]
        assert outputs[-1].finish in ("stop", "length"), outputs[-1].error
        return [token for output in outputs for token in output.tokens]

    def turn(self, history: History, prompt: list[int], **more) -> tuple[History, list[int]]:
        """One turn, committed: the history with it, and the reply."""
        reply = self.ask(prompt, history, **more)
        return self.commit(history, prompt + reply), reply

    def commit(self, history: History, ids: list[int]) -> History:
        digest = extend(history.digest, ids)
        self.store.turns[digest] = history.digest, ids
        return History(digest=digest, tokens=history.tokens + len(ids), session=1, turn=history.turn + 1)


def alone(tokens: list[int], count: int = 5) -> list[int]:
    """What the model draws behind these tokens when nothing is cached."""
    drawn = []
    for _ in range(count):
        drawn.append(DigestBackend(1).next_token(tokens + drawn))
    return drawn


def play(rig: Rig, sessions: int, turns: int) -> None:
    """Turns of several sessions, each session's after all the others'; asserts every reply."""
    heads = [History(digest=ROOT)] * sessions
    logs: list[list[int]] = [[] for _ in heads]
    for number in range(turns):
        for session in range(sessions):
            prompt = [100 * session + number + 1] * 3
            heads[session], reply = rig.turn(heads[session], prompt)
            assert reply == alone(logs[session] + prompt)
            logs[session] += prompt + reply


@OVERLAPS
@pytest.mark.parametrize(("parked", "host"), [(9, 0), (2, 9), (2, 2), (0, 3), (1, 0), (0, 0)])
def test_a_session_reads_as_if_it_had_never_left_the_device(overlap, parked, host):
    play(Rig(overlap=overlap, parked=parked, host=host), sessions=6, turns=4)


def test_every_level_is_used():
    rig = Rig(parked=2, host=2)
    play(rig, sessions=6, turns=3)
    counters = rig.states.counters
    assert counters.loads == 12, "six sessions taken in turn never fit into four entries"
    play(rig, sessions=3, turns=3)
    assert counters.host_hits > 0
    play(rig, sessions=1, turns=3)
    assert counters.device_hits > 0


@OVERLAPS
def test_a_head_in_l1_costs_no_prefill_but_that_of_the_new_prompt(overlap):
    rig = Rig(overlap=overlap)
    head, _ = rig.turn(History(digest=ROOT), [7] * 40)
    before = rig.fed
    rig.turn(head, [8] * 4)
    assert rig.fed - before == 5, "the new prompt, and the token that was drawn last and not fed"


@OVERLAPS
def test_a_stop_id_is_not_part_of_the_history(overlap):
    rig = Rig(overlap=overlap)
    third = alone([1, 2])[2]
    head, reply = rig.turn(History(digest=ROOT), [1, 2], stop_ids=[third], max_tokens=50)
    assert reply == alone([1, 2])[:2]
    assert rig.turn(head, [3])[1] == alone([1, 2, *reply, 3])
    assert rig.states.counters.loads == 0


def test_a_lost_state_is_rebuilt_from_the_last_snapshot_and_the_log():
    rig = Rig(parked=1, host=0)
    head, first = rig.turn(History(digest=ROOT), [1] * 10)
    rig.states.begin_sweep()
    assert rig.states.sweep_one()
    assert not rig.states.sweep_one(), "what was saved is not saved again"
    head, second = rig.turn(head, [2] * 10)
    rig.states.forget(rig.states.device_names())
    before = rig.fed
    _, third = rig.turn(head, [3])
    assert third == alone([1] * 10 + first + [2] * 10 + second + [3])
    assert rig.fed - before == 1 + 10 + 5 + 1, "the snapshot's pending token, the second turn, the new prompt"


def test_a_rebuilt_head_is_kept_even_if_its_turn_is_not():
    rig = Rig(parked=2)
    head, first = rig.turn(History(digest=ROOT), [1] * 10)
    rig.states.forget(rig.states.device_names())
    row = rig.submit([5], head, max_tokens=1000)
    for _ in range(5):
        rig.engine.step()
    assert rig.engine.cancel(("web", row))[1].finish == "cancelled"
    before = rig.fed
    assert rig.turn(head, [6])[1] == alone([1] * 10 + first + [6])
    assert rig.fed - before == 1


def test_a_cancelled_turn_leaves_the_session_as_it_was():
    rig = Rig()
    head, first = rig.turn(History(digest=ROOT), [1])
    row = rig.submit([2], head, max_tokens=1000)
    for _ in range(7):
        rig.engine.step()
    rig.engine.cancel(("web", row))
    assert rig.states.device_names() == [head.digest]
    assert rig.turn(head, [2])[1] == alone([1, *first, 2])


def test_a_branch_leaves_its_parent_as_it_was():
    rig = Rig(parked=1)
    parent, first = rig.turn(History(digest=ROOT), [1])
    parent.stays = True
    for child in ([2], [3, 4], [5]):
        assert rig.turn(parent, child)[1] == alone([1, *first, *child])
    entry = rig.states.find(parent.digest)
    assert entry.state["fed"].tolist() == [1, *first[:-1]], "in L2 by now"
    assert entry.pending == first[-1:]
    assert rig.states.counters.loads == 0


def test_a_head_that_was_left_behind_makes_room_first():
    rig = Rig(parked=2, host=0)
    other, _ = rig.turn(History(digest=ROOT), [9])
    head, _ = rig.turn(History(digest=ROOT), [1])
    head, _ = rig.turn(head, [2])
    assert set(rig.states.device_names()) == {other.digest, head.digest}


def test_a_prompt_without_new_tokens_only_moves_the_head():
    """How the web brings a state up to date when a stop string cut the reply short."""
    rig = Rig()
    head, first = rig.turn(History(digest=ROOT), [1])
    assert rig.ask([2, 3, 4], head, max_tokens=0) == []
    moved = rig.commit(head, [2, 3, 4])
    before = rig.fed
    assert rig.turn(moved, [5])[1] == alone([1, *first, 2, 3, 4, 5])
    assert rig.fed - before == 1


@OVERLAPS
def test_a_row_waits_for_its_state_and_holds_nobody_up(overlap):
    rig = Rig(overlap=overlap)
    head, first = rig.turn(History(digest=ROOT), [1])
    rig.states.forget(rig.states.device_names())
    rig.store.at_once = False
    waits = rig.submit([2], head)
    other = rig.submit([9])
    outputs: dict[int, list[int]] = {waits: [], other: []}
    for _ in range(10):
        for _web, output in rig.engine.step():
            outputs[output.row] += output.tokens
    assert outputs == {waits: [], other: alone([9])}
    rig.store.answer()
    assert [token for output in rig.finish()[waits] for token in output.tokens] == alone([1, *first, 2])


def test_a_history_that_cannot_be_loaded_fails_its_row_alone():
    rig = Rig()
    rig.store.at_once = False
    lost = History(digest=ROOT, tokens=3, session=1, turn=1)
    rig.store.turns[ROOT] = (ROOT, [])
    row, other = rig.submit([2], lost), rig.submit([9])
    rig.engine.step()
    for future, _ in rig.store.waiting:
        future.set_exception(OSError("the disk is gone"))
    outputs = rig.finish()
    assert (outputs[row][-1].finish, outputs[row][-1].error) == (
        "error",
        "the session's state cannot be loaded now",
    )
    assert outputs[other][-1].finish == "length"
    assert rig.states.device_names() == [extend(ROOT, [9, *alone([9])])]


def test_a_resumed_row_ends_with_the_same_head():
    rig = Rig()
    reply = alone([1, 2])
    assert rig.ask([1, 2], generated=reply[:3]) == reply[3:]
    assert rig.states.device_names() == [extend(ROOT, [1, 2, *reply])]


# -- the prefix cache ---------------------------------------------------------------------------


def test_a_sweep_never_saves_a_slot_that_has_become_another_states():
    rig = Rig(parked=2, host=0)
    first, _ = rig.turn(History(digest=ROOT), [1, 2, 3])
    rig.states.begin_sweep()
    rig.states.forget([first.digest])
    rig.turn(History(digest=ROOT), [7, 8])  # in the slot that has become free
    again, reply = rig.turn(History(digest=ROOT), [1, 2, 3])
    assert again.digest == first.digest
    while rig.states.sweep_one():
        pass
    assert first.digest not in rig.store.saved
    rig.states.begin_sweep()
    while rig.states.sweep_one():
        pass
    saved = rig.store.saved[first.digest]
    assert saved.state["fed"].tolist() + saved.pending == [1, 2, 3, *reply]


def test_a_shared_prefix_is_prefilled_once():
    rig = Rig(prefix_bytes=2**20)
    shared = [n % 50 + 1 for n in range(2000)]
    for ending in range(20):
        before = rig.fed
        row = rig.submit([*shared, 1000 + ending], keep=False)
        outputs = rig.finish()[row]
        assert [token for output in outputs for token in output.tokens] == alone([*shared, 1000 + ending])
        assert outputs[0].cached_tokens == (7 * BLOCK if ending else 0)
        assert rig.fed - before == (2001 - 7 * BLOCK if ending else 2001)
    assert rig.states.counters.cached_tokens == 19 * 7 * BLOCK


@OVERLAPS
def test_prompts_that_come_at_once_share_the_prefill_of_their_beginning(overlap):
    rig = Rig(prefix_bytes=2**20, overlap=overlap)
    shared = [n % 50 + 1 for n in range(3 * BLOCK)]
    prompts = [[*shared, 1000 + ending] for ending in range(6)]
    rows = [rig.submit(prompt, keep=False) for prompt in prompts]
    outputs = rig.finish()
    for row, prompt in zip(rows, prompts, strict=True):
        assert [token for output in outputs[row] for token in output.tokens] == alone(prompt)
    assert rig.fed == len(shared) + len(prompts)


def test_rows_go_on_when_the_one_they_wait_for_ends_early():
    rig = Rig(prefix_bytes=2**20)
    prompt = [5] * (2 * BLOCK)
    first, second = rig.submit(prompt), rig.submit([*prompt, 6])
    rig.engine.step()
    assert rig.engine.cancel(("web", first))
    assert [token for output in rig.finish()[second] for token in output.tokens] == alone([*prompt, 6])


def test_a_budget_too_small_for_any_prefix_stops_nobody():
    rig = Rig(prefix_bytes=1)
    prompt = [5] * (2 * BLOCK)
    rows = [rig.submit([*prompt, ending]) for ending in (6, 7, 8)]
    outputs = rig.finish()
    assert all(outputs[row][-1].finish == "length" for row in rows)


def test_a_repeated_prompt_is_prefilled_but_for_its_last_border():
    rig = Rig(prefix_bytes=2**20)
    prompt = list(range(1, 2 * BLOCK + 1))
    assert rig.ask(prompt) == rig.ask(prompt) == alone(prompt)
    assert rig.states.counters.cached_tokens == BLOCK, "one token at least is fed, for its logits"


def test_nothing_is_shared_between_owners():
    rig = Rig(prefix_bytes=2**20)
    prompt = list(range(1, 600))
    for owner in ("one", "other"):
        assert rig.ask(prompt, History(digest=root("model", owner))) == alone(prompt)
    assert rig.states.counters.cached_tokens == 0


def test_the_prefix_cache_keeps_to_its_budget():
    rig = Rig(prefix_bytes=4 * 3 * BLOCK)  # this model's states grow: 4 bytes a token
    first, second = [1] * 600, [2] * 600
    for prompt in (first, second, second, first):
        assert rig.ask(prompt) == alone(prompt)
    assert rig.states.counters.cached_tokens == 2 * BLOCK, "the first was dropped for the second"


def test_prompt_logprobs_need_the_whole_prompt():
    rig = Rig(prefix_bytes=2**20)
    prompt = [END_OF_TEXT + 1] * 600
    rig.ask(prompt)
    row = rig.submit(prompt, prompt_logprobs=0)
    assert len(rig.finish()[row][0].prompt_logprobs) == 600


def test_borders_are_the_same_for_every_length_and_few():
    assert list(borders(1000)) == [256, 512, 768]
    assert list(borders(10_000))[: len(list(borders(3000)))] == list(borders(3000))
    assert len(list(borders(1_000_000))) < 100
    assert all(b - a <= max(BLOCK, a / 8) for a, b in zip([0, *borders(100_000)], borders(100_000), strict=False))


def test_names_depend_on_model_owner_start_and_order():
    names = {root("m", "o"), root("m", "p"), root("n", "o"), root("m", "o", "tuned"), root("mo", "")}
    assert len(names) == 5
    assert extend(extend(ROOT, [1]), [2]) != extend(extend(ROOT, [2]), [1])
    assert unpack_ids(pack_ids([0, 65535, 2**31])) == [0, 65535, 2**31]


def test_an_initial_state_is_loaded_once_however_many_begin_with_it():
    rig = Rig(prefix_bytes=2**20)
    start = root("model", "owner", "tuned")
    history = History(digest=start, start=1, pending=[9])
    tuned = {"fed": np.array([1, 2, 3], dtype=np.uint32)}
    rig.store.saved[start] = SavedState(digest=start, tokens=0, pending=[9], state=tuned)
    rig.store.at_once = False
    shared = [5] * BLOCK
    rows = [rig.submit([*shared, ending], history, keep=False) for ending in (6, 7, 8)]
    rig.engine.step()
    assert len(rig.store.waiting) == 1
    rig.store.answer()
    outputs = rig.finish()
    for row, ending in zip(rows, (6, 7, 8), strict=True):
        assert [token for output in outputs[row] for token in output.tokens] == alone([1, 2, 3, 9, *shared, ending])
    assert rig.fed == 1 + len(shared) + len(rows)
    assert rig.ask([4], history) == alone([1, 2, 3, 9, 4]), "it is in memory now"
