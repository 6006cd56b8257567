"""Sessions that nobody uses any more."""

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from inference.bus.messages import EngineStatus, ModelInfo
from inference.bus.server import EngineBus
from sessions.actions import expire, shrink
from sessions.models import Conversation, Session
from sessions.states import StoredState, store_snapshots
from sessions.store import NewTurn, commit_branch, commit_turn, delete_sessions, read_head
from sessions.tasks import remove_old_sessions
from tests.service import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

MODEL = ModelInfo(id="tiny", layers=1, width=64, vocab=65536, parameters=1, fingerprint="f" * 64)


def used(key: str, days_ago: float) -> None:
    turn = NewTurn(prompt=[1], reply=[2], sampling={}, finish_reason="stop", duration=0.0)
    commit_turn(read_head("me", key, MODEL), turn)
    Session.objects.filter(key=key).update(last_used=timezone.now() - timedelta(days=days_ago))


def keys() -> set[str]:
    return set(Session.objects.present().values_list("key", flat=True))


def test_old_sessions_are_deleted_and_a_turn_makes_them_young():
    used("old", 31)
    used("revived", 31)
    used("young", 29)
    used("revived", 0)
    remove_old_sessions()
    assert keys() == {"revived", "young"}


@pytest.mark.parametrize("remove", [lambda: expire(30), lambda: shrink(1)], ids=["ttl", "size"])
def test_the_engines_forget_the_states_of_what_is_deleted(redis_url: str, remove: Callable[[], int]):
    status = EngineStatus(engine="e", state="ready", host="", pid=0, started=0.0, updated=0.0, model=MODEL)
    engine = EngineBus(redis_url, status=lambda: status, name="e")
    engine.start()
    engine.serve(MODEL.id)
    used("old", 31)
    name = bytes.fromhex(Session.objects.get(key="old").digest)
    forgotten: list[bytes] = []

    def is_told() -> bool:  # again and again: an engine hears what was said since it began to listen
        if not keys():
            used("old", 31)
        remove()
        forgotten.extend(engine.forgotten())
        return bool(forgotten)

    try:
        wait_until(is_told, 10, "the engine is told")
    finally:
        engine.stop()
    assert set(forgotten) == {name}


def test_the_counter_of_a_conversation_goes_when_it_is_old_and_has_no_branch():
    turn = NewTurn(prompt=[1], reply=[2], sampling={}, finish_reason="stop", duration=0.0)
    for conversation in ("gone", "kept", "young"):
        commit_branch(read_head("me", f"{conversation}:0", MODEL), conversation, turn)
    delete_sessions(Session.objects.exclude(conversation="kept"))
    Conversation.objects.exclude(key="young").update(last_used=timezone.now() - timedelta(days=31))
    remove_old_sessions()
    assert set(Conversation.objects.values_list("key", flat=True)) == {"kept", "young"}


def test_zero_days_keep_everything():
    used("old", 10_000)
    assert expire(0) == 0
    assert keys() == {"old"}


def test_the_sessions_unused_for_longest_go_until_the_rest_fits(settings):
    for days, key in enumerate("abcd"):
        used(key, days)
    session = Session.objects.get(key="b")
    state = StoredState(digest=bytes.fromhex(session.digest), tokens=2, pending=[], dtype="f", data=b"s" * 1000)
    store_snapshots([state], fingerprint=MODEL.fingerprint)  # of all four: their histories are the same
    assert shrink(4 * 1008) == 0
    settings.RWKV = dataclasses.replace(settings.RWKV, session_max_bytes=2 * 1008)
    remove_old_sessions()
    assert keys() == {"a", "b"}
    assert shrink(1) == 2
    assert keys() == set()
