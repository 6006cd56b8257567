"""Rows that begin behind a history: where their state comes from, and that it makes no difference."""

import pytest

from inference.bus.messages import History
from inference.history import BLOCK, extend
from tests.engine.history_rig import OVERLAPS, ROOT, LazyBackend, Rig, alone, play


@OVERLAPS
@pytest.mark.parametrize(("parked", "host"), [(9, 0), (2, 9), (2, 2), (0, 3), (1, 0), (0, 0)])
def test_a_session_reads_as_if_it_had_never_left_the_device(overlap, parked, host):
    play(Rig(overlap=overlap, parked=parked, host=host), sessions=6, turns=4)


@pytest.mark.parametrize(("parked", "host"), [(2, 9), (2, 2), (0, 3), (0, 0)])
def test_states_may_come_to_the_host_later(parked, host):
    play(Rig(overlap=True, parked=parked, host=host, backend=LazyBackend), sessions=6, turns=4)


def test_states_are_kept_and_handed_on_without_a_look_at_them():
    """A look would wait for the device; here it fails."""
    rig = Rig(parked=1, host=1, prefix_bytes=2 * 4 * BLOCK, backend=LazyBackend)
    rig.backend.copies_fail = True
    heads = []
    for first in range(1, 5):
        prompt = [first] * (BLOCK + 1)
        head, reply = rig.turn(History(digest=ROOT), prompt)
        assert reply == alone(prompt)
        heads.append(head.digest)
    rig.states.begin_sweep()
    while rig.states.sweep_one():
        pass
    rig.states.forget(heads)
    assert rig.states.host_names() == []
    assert rig.store.saved.keys() == set(heads)
    with pytest.raises(RuntimeError, match="a state did not come to the host: lost on the way"):
        rig.store.saved[heads[0]].state["fed"]


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
