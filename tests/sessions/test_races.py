"""Two who write at once, and answers of the database that get lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections
from django.utils import timezone

from inference.bus.messages import ModelInfo
from sessions.actions import expire, shrink
from sessions.initial_states import StateInUse, delete_state
from sessions.models import InitialState, InitialStateData, Session, Turn
from sessions.store import NewTurn, SessionChanged, WrongStart, commit_branch, commit_turn, read_head

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

MODEL = ModelInfo(id="tiny", layers=1, width=64, vocab=65536, parameters=1, fingerprint="f" * 64)
BLOCKED_SECONDS = 1.0  # then whoever writes beside us is taken to wait for us


def turn() -> NewTurn:
    return NewTurn(prompt=[1], reply=[2], sampling={}, finish_reason="stop", duration=0.0)


def tuned() -> InitialState:
    state = InitialState.objects.create(
        key="tuned",
        owner="me",
        filename="tuned.pth",
        model=MODEL.id,
        model_fingerprint=MODEL.fingerprint,
        tensor_count=1,
        pending_ids=b"",
        checksum="0" * 64,
        size=1,
    )
    InitialStateData.objects.create(state=state, blob=b"s")
    return state


@contextmanager
def beside_the_first_look(work: Callable[[], object]) -> Iterator[list[Exception]]:
    """`work` is done by a thread once somebody has looked at the sessions, or as soon as the locks let it. Yields what
    it raises, which is complete behind the block."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)

    def meddle(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith("SELECT") and Session._meta.db_table in sql and thread.ident is None:
            thread.start()
            thread.join(BLOCKED_SECONDS)
        return result

    with connection.execute_wrapper(meddle):
        yield errors
    thread.join()


@pytest.mark.parametrize("remove", [lambda: expire(30), lambda: shrink(1)], ids=["ttl", "size"])
def test_no_turn_is_committed_to_a_session_that_is_being_removed(remove):
    commit_turn(read_head("me", "a", MODEL), turn())
    Session.objects.update(last_used=timezone.now() - timedelta(days=31))
    head = read_head("me", "a", MODEL)
    with beside_the_first_look(lambda: commit_turn(head, turn())) as errors:
        assert remove() == 1
    assert [type(error) for error in errors] == [SessionChanged]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_commit_whose_answer_is_lost_is_one(monkeypatch, turns):
    for _ in range(turns - 1):
        commit_turn(read_head("me", "a", MODEL), turn())
    head, commit = read_head("me", "a", MODEL), connection._commit

    def lose() -> None:
        monkeypatch.setattr(connection, "_commit", commit)
        commit()
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(connection, "_commit", lose)
    history = commit_turn(head, turn())
    session = Session.objects.get()
    assert (history.session, history.digest.hex(), history.turn) == (session.pk, session.digest, turns)
    assert Turn.objects.count() == turns


def test_a_commit_that_fails_is_none(monkeypatch):
    head, commit = read_head("me", "a", MODEL), connection._commit

    def fail() -> None:
        monkeypatch.setattr(connection, "_commit", commit)
        raise OperationalError("disk full")

    monkeypatch.setattr(connection, "_commit", fail)
    with pytest.raises(OperationalError, match="disk full"):
        commit_turn(head, turn())
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    "commit", [lambda head: commit_turn(head, turn()), lambda head: commit_branch(head, "c", turn())]
)
def test_a_first_turn_behind_a_state_that_was_deleted_is_told_so(commit):
    head = read_head("me", "a", MODEL, tuned())
    assert delete_state("me", "tuned")
    with pytest.raises(WrongStart, match="state_id: the state was deleted in the meantime"):
        commit(head)


def test_a_state_with_which_a_session_begins_at_that_moment_is_in_use():
    head = read_head("me", "a", MODEL, tuned())
    with beside_the_first_look(lambda: commit_turn(head, turn())) as errors, pytest.raises(StateInUse):
        delete_state("me", "tuned")
    assert errors == []
    assert InitialState.objects.exists() and Session.objects.count() == 1
