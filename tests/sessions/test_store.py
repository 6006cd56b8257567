"""The log and the snapshots in a real database."""

import sys
from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.bus.messages import History, ModelInfo
from inference.history import extend, root
from sessions.actions import fork
from sessions.models import Conversation, Session, Snapshot, SnapshotData, Turn
from sessions.states import BrokenLog, StoredState, find_route, store_snapshots
from sessions.store import (
    BRANCH_ATTEMPTS,
    Head,
    NewTurn,
    SessionChanged,
    WrongModel,
    commit_branch,
    commit_turn,
    delete_sessions,
    read_head,
)
from sessions.transcript import read_transcript

pytestmark = pytest.mark.django_db

MODEL = ModelInfo(id="tiny", layers=1, width=64, vocab=65536, parameters=1, fingerprint="f" * 64)
OTHER_MODEL = ModelInfo(id="large", layers=2, width=64, vocab=65536, parameters=1, fingerprint="e" * 64)
ROOT = root(MODEL.fingerprint, "me")
DTYPE = "float32/float32"


def turn(*prompt: int, reply: tuple[int, ...] = (9,)) -> NewTurn:
    return NewTurn(prompt=list(prompt), reply=list(reply), sampling={"seed": 1}, finish_reason="stop", duration=0.5)


def commit(key: str, *prompt: int, owner: str = "me") -> History:
    return commit_turn(read_head(owner, key, MODEL), turn(*prompt))


def route(history: History, cached: tuple[bytes, ...] = (), **more):
    return find_route(history, cached, **{"fingerprint": MODEL.fingerprint, "dtype": DTYPE} | more)


def state(history: History, data: bytes = b"state", pending: tuple[int, ...] = ()) -> StoredState:
    return StoredState(digest=history.digest, tokens=history.tokens, pending=list(pending), dtype=DTYPE, data=data)


def save(*states: StoredState) -> set[bytes]:
    return store_snapshots(states, fingerprint=MODEL.fingerprint)


# -- turns --------------------------------------------------------------------------------------


def test_turns_lengthen_the_history():
    first, second = commit("a", 1, 2), commit("a", 3)
    assert first.digest == extend(ROOT, [1, 2, 9])
    assert second.digest == extend(first.digest, [3, 9])
    assert (second.tokens, second.turn) == (5, 2)
    head = read_head("me", "a", MODEL)
    assert head.history == second
    assert list(Turn.objects.values_list("number", "finish_reason")) == [(1, "stop"), (2, "stop")]


def test_the_log_cannot_fork():
    commit("a", 1)
    one, other = read_head("me", "a", MODEL), read_head("me", "a", MODEL)
    commit_turn(one, turn(2))
    with pytest.raises(SessionChanged, match="a"):
        commit_turn(other, turn(3))
    assert read_head("me", "a", MODEL).history.turn == Turn.objects.count() == 2


def test_two_first_turns_make_one_session():
    one, other = read_head("me", "a", MODEL), read_head("me", "a", MODEL)
    commit_turn(one, turn(1))
    with pytest.raises(SessionChanged):
        commit_turn(other, turn(2))
    assert (Session.objects.count(), Turn.objects.count()) == (1, 1)


def test_a_turn_of_a_session_deleted_meanwhile_is_refused():
    commit("a", 1)
    head = read_head("me", "a", MODEL)
    delete_sessions(Session.objects.all())
    with pytest.raises(SessionChanged):
        commit_turn(head, turn(2))
    with pytest.raises(SessionChanged):
        commit_branch(head, "b", turn(2))
    assert not Session.objects.exists()


def test_owners_do_not_see_each_other():
    commit("a", 1)
    assert read_head("you", "a", MODEL).session is None
    commit("a", 1, owner="you")
    assert Session.objects.count() == 2
    assert len(set(Session.objects.values_list("digest", flat=True))) == 2


def test_a_session_of_another_model_is_refused():
    commit("a", 1)
    with pytest.raises(WrongModel, match="session a belongs to the model tiny, not to large"):
        read_head("me", "a", OTHER_MODEL)


@pytest.mark.parametrize(
    "broken",
    [
        {"parent_turn": 1},
        {"turn_count": 0},
        {"token_count": 0},
        {"key": "taken"},
    ],
)
def test_the_database_refuses_what_cannot_be(broken):
    commit("taken", 1)
    good = {"key": "b", "owner": "me", "model": "m", "digest": "0" * 32, "token_count": 1, "turn_count": 1}
    with pytest.raises(IntegrityError), transaction.atomic():
        Session.objects.create(**good | broken)


def test_a_turn_number_is_taken_once():
    history = commit("a", 1)
    copy = Turn.objects.get()
    copy.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        copy.save()
    assert history.turn == 1


# -- ways to a state ----------------------------------------------------------------------------


def test_without_any_state_the_whole_log_is_fed():
    commit("a", 1)
    found = route(commit("a", 2))
    assert (found.base, found.stored, found.tokens) == (b"", None, [1, 9, 2, 9])


def test_the_nearest_state_is_taken():
    first, second = commit("a", 1), commit("a", 2)
    assert save(state(second)) == {second.digest}
    third = commit("a", 3)
    fourth = commit("a", 4)
    found = route(fourth, (first.digest,))
    assert (found.stored.data, found.tokens) == (b"state", [3, 9, 4, 9])
    found = route(fourth, (third.digest, first.digest))
    assert (found.base, found.stored, found.tokens) == (third.digest, None, [4, 9])


def test_an_earlier_history_of_the_session_can_be_reached_too():
    first = commit("a", 1)
    save(state(commit("a", 2)))
    assert route(first).tokens == [1, 9]


@pytest.mark.parametrize("field", ["blob", "missing", "dtype", "fingerprint", "layout"])
def test_a_snapshot_that_cannot_be_used_is_passed_over(field):
    history = commit("a", 1)
    save(state(history))
    more = {}
    if field == "blob":
        SnapshotData.objects.update(blob=b"stat")
    elif field == "missing":
        SnapshotData.objects.all().delete()
    elif field == "dtype":
        more = {"dtype": "float16/float16"}
    elif field == "layout":
        Snapshot.objects.update(layout=99)
    else:
        Snapshot.objects.update(model_fingerprint="e" * 64)
    found = route(history, **more)
    assert (found.stored, found.tokens) == (None, [1, 9])


@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_log_is_noticed(number):
    commit("a", 1)
    history = commit("a", 2)
    Turn.objects.filter(number=number).update(prompt_ids=b"\7\0\0\0")
    with pytest.raises(BrokenLog, match="a turn of the log is damaged"):
        route(history)


def test_a_history_that_is_not_in_the_log_is_not_made_up():
    history = commit("a", 1)
    history.digest = extend(ROOT, [5])
    with pytest.raises(BrokenLog, match="does not lead to this history"):
        route(history)
    history.session = 0
    with pytest.raises(BrokenLog, match="the session is gone"):
        route(history)


# -- snapshots ----------------------------------------------------------------------------------


def test_only_heads_have_snapshots_and_the_newest_replaces():
    first = commit("a", 1)
    assert save(state(first, b"one", pending=(9,))) == {first.digest}
    second = commit("a", 2)
    uncommitted = History(digest=extend(second.digest, [3]), tokens=6)
    assert save(state(first), state(uncommitted), state(second, b"two")) == {second.digest}
    snapshot = Snapshot.objects.get()
    assert (snapshot.turn, snapshot.token_count, snapshot.size, bytes(snapshot.data.blob)) == (2, 4, 3, b"two")
    assert route(second).stored.pending == []
    assert SnapshotData.objects.count() == 1


def test_sessions_with_one_history_share_a_state():
    for key in "ab":
        history = commit(key, 1)
    assert save(state(history)) == {history.digest}
    assert Snapshot.objects.count() == 2


# -- branches -----------------------------------------------------------------------------------


def test_a_branch_begins_with_its_parents_log():
    root_head = read_head("me", "c:0", MODEL)
    trunk, number = commit_branch(root_head, "c", turn(1))
    assert (number, trunk.turn) == (1, 1)
    child, number = commit_branch(read_head("me", "c:1", MODEL), "c", turn(2))
    assert (number, child.turn) == (2, 2)
    other, number = commit_branch(read_head("me", "c:1", MODEL), "c", turn(3))
    assert number == 3
    commit("c:1", 4)
    assert route(child).tokens == [1, 9, 2, 9]
    assert route(other).tokens == [1, 9, 3, 9]
    assert route(read_head("me", "c:1", MODEL).history).tokens == [1, 9, 4, 9]
    assert route(other, (trunk.digest,)).tokens == [3, 9]


def test_a_deleted_parent_stays_until_its_last_branch_is_gone():
    commit_branch(read_head("me", "c:0", MODEL), "c", turn(1))
    child, _ = commit_branch(read_head("me", "c:1", MODEL), "c", turn(2))
    parent = Session.objects.of("me", "c:1")
    assert delete_sessions([parent]) == [bytes.fromhex(parent.digest)]
    assert Session.objects.of("me", "c:1") is None
    assert route(child).tokens == [1, 9, 2, 9]
    _, number = commit_branch(read_head("me", "c:0", MODEL), "c", turn(5))
    assert number == 3, "numbers are not given again"
    delete_sessions([Session.objects.of("me", "c:2")])
    assert list(Session.objects.values_list("key", flat=True)) == ["c:3"]


def test_the_number_of_a_deleted_branch_is_not_given_again():
    for prompt in (1, 2):
        commit_branch(read_head("me", "c:0", MODEL), "c", turn(prompt))
    delete_sessions([Session.objects.of("me", "c:2")])
    assert commit_branch(read_head("me", "c:0", MODEL), "c", turn(3))[1] == 3
    delete_sessions(Session.objects.family("me", "c"))
    assert commit_branch(read_head("me", "c:0", MODEL), "c", turn(4))[1] == 4
    assert commit_branch(read_head("you", "c:0", MODEL), "c", turn(4))[1] == 1, "each caller has conversations alone"


def test_numbers_whose_keys_are_taken_are_passed_over():
    for number in range(1, 2 * BRANCH_ATTEMPTS):
        commit(f"c:{number}", number)
    _, number = commit_branch(read_head("me", "c:0", MODEL), "c", turn(1))
    assert number == 2 * BRANCH_ATTEMPTS
    delete_sessions([Session.objects.of("me", "c:1")])
    assert commit_branch(read_head("me", "c:0", MODEL), "c", turn(1))[1] == number + 1


def test_conversations_from_before_there_were_counters_go_on_behind_their_highest_number():
    for prompt in (1, 2):
        commit_branch(read_head("me", "c:0", MODEL), "c", turn(prompt))
    Conversation.objects.all().delete()
    import_module("sessions.migrations.0006_conversation_counters").count_branches(apps, None)
    assert commit_branch(read_head("me", "c:0", MODEL), "c", turn(3))[1] == 3


def test_a_branch_counts_as_a_use_of_its_parent():
    commit("parent", 1)
    commit("other", 1)
    long_ago = timezone.now() - timedelta(days=30)
    Session.objects.update(last_used=long_ago)
    commit_branch(read_head("me", "parent", MODEL), "c", turn(2))
    assert set(Session.objects.filter(last_used__gt=long_ago).values_list("key", flat=True)) == {"parent", "c:1"}


def test_a_session_may_have_more_ancestors_than_python_has_frames():
    commit("0", 1)
    session = Session.objects.of("me", "0")
    for number in range(1, sys.getrecursionlimit() + 200):
        session = fork(session, str(number))
    assert [turn.number for turn in read_transcript(session)] == [1]
    Session.objects.exclude(pk=session.pk).update(deleted_at=timezone.now())
    delete_sessions([Session.objects.get(pk=session.pk)])
    assert not Session.objects.exists()


def test_a_whole_family_is_deleted():
    for index in (0, 1, 2):
        commit_branch(read_head("me", f"c:{index}", MODEL), "c", turn(index + 1))
    commit("C:1", 1)
    commit("c", 1)
    delete_sessions(Session.objects.family("me", "c"))
    assert list(Session.objects.values_list("key", flat=True)) == ["C:1"]


def test_the_states_of_earlier_turns_go_too():
    names = [commit("a", number).digest for number in (1, 2, 3)]
    assert sorted(delete_sessions([Session.objects.of("me", "a")])) == sorted(names)


def test_a_state_that_another_session_has_too_is_not_forgotten():
    for key in "ab":
        commit(key, 1)
    assert delete_sessions([Session.objects.of("me", "a")]) == []


def test_a_route_takes_few_queries_however_long_the_log_is():
    for number in range(30):
        history = commit("a", number + 1)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert len(route(history).tokens) == 60
    assert len(queries) == 3, "the session, its snapshot, its turns"


def test_a_head_is_one_query(django_assert_num_queries):
    commit("a", 1)
    with django_assert_num_queries(1):
        assert isinstance(read_head("me", "a", MODEL), Head)
