"""Guessing passwords, on both login forms: slowed down for the one who guesses, and for nobody else."""

import dataclasses

import pytest
import redis
from django.contrib.auth import get_user_model
from django.test import Client

from rwkvsite.logins import MINUTES, MOST_OF_ADDRESS, MOST_OF_NAME

PASSWORD = "correct horse battery staple"
TOO_MANY = "Too many failed logins. Try again in 5 minutes."
FORMS = ("/login/", "/admin/login/")


@pytest.fixture(autouse=True)
def nothing_is_counted(redis_url: str, db: None) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    for name in ("operator", "other"):
        get_user_model().objects.create_superuser(name, password=PASSWORD)


def log_in(name: str = "operator", password: str = PASSWORD, form: str = FORMS[0], **client: str):
    return Client(**client).post(form, {"username": name, "password": password, "next": "/"})


@pytest.mark.parametrize("form", FORMS)
def test_after_a_few_failures_even_the_right_password_waits(form):
    for _ in range(MOST_OF_NAME):
        assert TOO_MANY not in log_in(password="wrong", form=form).content.decode()
    for both in FORMS:
        answer = log_in(form=both)
        assert answer.status_code == 200 and TOO_MANY in answer.content.decode()


def test_others_and_other_addresses_go_on():
    for _ in range(MOST_OF_NAME):
        log_in(password="wrong")
    assert log_in("other").status_code == 302
    assert log_in(REMOTE_ADDR="203.0.113.7").status_code == 302


def test_a_login_forgets_the_failures_of_its_name():
    for _ in range(2):
        for _ in range(MOST_OF_NAME - 1):
            log_in(password="wrong")
        assert log_in().status_code == 302


def test_an_address_that_tries_many_names_waits():
    for number in range(MOST_OF_ADDRESS):
        log_in(f"name {number}", "wrong")
    assert TOO_MANY in log_in().content.decode()
    assert log_in(REMOTE_ADDR="203.0.113.7").status_code == 302


def test_the_address_is_what_the_proxy_says_only_where_there_is_one(settings):
    def fail_from(forwarded: str) -> None:
        for _ in range(MOST_OF_NAME):
            log_in(password="wrong", HTTP_X_FORWARDED_FOR=forwarded)

    fail_from("203.0.113.1")
    assert log_in(HTTP_X_FORWARDED_FOR="203.0.113.2").status_code == 200  # anybody may write that
    settings.RWKV = dataclasses.replace(settings.RWKV, https=True)
    fail_from("made up, 203.0.113.3")
    assert log_in(HTTP_X_FORWARDED_FOR="also made up, 203.0.113.3").status_code == 200
    assert log_in(HTTP_X_FORWARDED_FOR="203.0.113.4").status_code == 302


def test_a_count_that_expires_while_it_is_raised_expires_again(redis_url, monkeypatch):
    log_in(password="wrong")
    exists = redis.Redis.exists

    def exists_for_the_last_time(connection: redis.Redis, *keys: str) -> int:
        found = exists(connection, *keys)
        connection.delete(*keys)
        return found

    monkeypatch.setattr(redis.Redis, "exists", exists_for_the_last_time)
    log_in(password="wrong")
    with redis.Redis.from_url(redis_url) as connection:
        lives = [connection.ttl(key) for key in connection.scan_iter("*login-failures:*")]
    assert len(lives) == 2  # of the name at its address, and of the address
    assert all(0 < seconds <= 60 * MINUTES for seconds in lives)


def test_without_redis_people_can_log_in(settings, tmp_path):
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": f"unix://{tmp_path}/none.sock"}}
    assert log_in(password="wrong").status_code == 200
    assert log_in().status_code == 302
