from datetime import timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone

from inference.models import ApiKey
from inference.tasks import remove_expired

pytestmark = pytest.mark.django_db


def test_an_issued_key_verifies_and_is_nowhere_in_the_database():
    key, secret = ApiKey.objects.issue(name="app")
    assert ApiKey.objects.verify(secret) == key
    assert secret.startswith(key.prefix)
    stored = ApiKey.objects.values().get()
    assert secret not in repr(stored)
    assert len(secret) > len(key.prefix) + 30


@pytest.mark.parametrize("wrong", ["", "rwkv-", "rwkv-unknown", "\udcff", "x" * 10_000])
def test_other_secrets_do_not_verify(wrong):
    ApiKey.objects.issue(name="app")
    assert ApiKey.objects.verify(wrong) is None


def test_neither_the_hash_nor_the_prefix_is_a_key():
    key, _ = ApiKey.objects.issue(name="app")
    assert ApiKey.objects.verify(key.hash) is None
    assert ApiKey.objects.verify(key.prefix) is None


def test_disabled_and_expired_keys_do_not_verify():
    _, disabled = ApiKey.objects.issue(name="off", enabled=False)
    _, expired = ApiKey.objects.issue(name="old", expires_at=timezone.now() - timedelta(seconds=1))
    _, fresh = ApiKey.objects.issue(name="new", expires_at=timezone.now() + timedelta(hours=1))
    assert ApiKey.objects.verify(disabled) is None
    assert ApiKey.objects.verify(expired) is None
    assert ApiKey.objects.verify(fresh).name == "new"


def test_verifying_is_one_query_and_notes_the_use_once_a_minute(django_assert_num_queries):
    key, secret = ApiKey.objects.issue(name="app")
    with django_assert_num_queries(2):  # found by its hash, and its use noted
        ApiKey.objects.verify(secret)
    with django_assert_num_queries(1):
        ApiKey.objects.verify(secret)
    key.refresh_from_db()
    assert timezone.now() - key.last_used < timedelta(minutes=1)


@pytest.mark.parametrize("limit", ["requests_per_minute", "max_concurrent"])
def test_the_database_refuses_a_limit_of_zero(limit):
    with pytest.raises(IntegrityError):
        ApiKey.objects.issue(name="app", **{limit: 0})


def test_the_periodic_task_disables_what_has_expired():
    ApiKey.objects.issue(name="old", expires_at=timezone.now() - timedelta(seconds=1))
    ApiKey.objects.issue(name="new", expires_at=timezone.now() + timedelta(hours=1))
    ApiKey.objects.issue(name="for ever")
    remove_expired()
    assert set(ApiKey.objects.filter(enabled=True).values_list("name", flat=True)) == {"new", "for ever"}
