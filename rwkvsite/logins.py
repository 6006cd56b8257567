"""Slows down whoever guesses passwords, on every login form: failures are counted in the cache.

They are counted for a name at an address, and for an address with whatever names. Not for a name alone: then
anybody could keep its owner out.
"""

import hashlib
import logging
from typing import Any

from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils.translation import ngettext
from redis import RedisError

log = logging.getLogger(__name__)

MINUTES = 5  # from the first failure on
MOST_OF_NAME = 5
MOST_OF_ADDRESS = 50


class FewFailures:
    """An authentication backend that knows no user. Raises ValidationError, which the form shows, after too many."""

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **credentials: Any) -> None:
        if request is None or username is None:
            return
        limits = dict(zip(_keys(request, username), (MOST_OF_NAME, MOST_OF_ADDRESS), strict=True))
        try:
            failures = cache.get_many(limits)
        except RedisError as error:
            log.warning("failed logins are not counted, because Redis is away: %s", error)
            return
        if any(count >= limits[key] for key, count in failures.items()):
            message = ngettext(
                "Too many failed logins. Try again in %(minutes)d minute.",
                "Too many failed logins. Try again in %(minutes)d minutes.",
                MINUTES,
            )
            raise ValidationError(message % {"minutes": MINUTES}, code="too_many_failures")


@receiver(user_login_failed)
def count(credentials: dict[str, Any], request: HttpRequest | None = None, **kwargs: Any) -> None:
    if request is None:
        return
    try:
        for key in _keys(request, credentials.get("username") or ""):
            # The cache looks for the key and then counts; one that expired between the two is made anew, for ever.
            if not cache.add(key, 1, 60 * MINUTES) and cache.incr(key) == 1:
                cache.touch(key, 60 * MINUTES)
    except RedisError as error:
        log.warning("a failed login is not counted, because Redis is away: %s", error)
    except ValueError:  # the count expired between the two
        log.info("a failed login is not counted, because the time of the others is over")


@receiver(user_logged_in)
def forget(request: HttpRequest, user: Any, **kwargs: Any) -> None:
    """Only those of the name: an attacker may have an account too."""
    try:
        cache.delete(_keys(request, user.get_username())[0])
    except RedisError as error:
        log.warning("failed logins are not forgotten, because Redis is away: %s", error)


def _keys(request: HttpRequest, username: str) -> tuple[str, str]:
    address = _address(request)
    digest = hashlib.sha256(f"{address} {username}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"login-failures:name:{digest}", f"login-failures:address:{address}"


def _address(request: HttpRequest) -> str:
    """The client's. HTTPS says that there is a proxy of ours, which adds it last; what is before that is made up."""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "") if settings.RWKV.https else ""
    return forwarded.rpartition(",")[2].strip()[:100] or request.META.get("REMOTE_ADDR") or ""
