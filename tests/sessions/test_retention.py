"""Sessions that nobody uses any more."""

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.bus.messages import ModelInfo
from sessions.actions import expire
from sessions.models import Session
from sessions.store import NewTurn, commit_turn, read_head
from sessions.tasks import remove_old_sessions

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


def test_zero_days_keep_everything():
    used("old", 10_000)
    assert expire(0) == 0
    assert keys() == {"old"}
