"""Who calls: a Bearer token or the body's `password`, against the shared password and the issued keys."""

import hashlib
import hmac
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar, cast

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from inference.api.edge import worker_key
from inference.models import ApiKey
from rwkvsite.origins import is_own

T = TypeVar("T", bound="Caller | bool | None")

# A key that was disabled is refused after this time at the latest, in every process.
REMEMBER_SECONDS = 10.0
REMEMBERED_KEYS = 1024


WORKER = "batch worker"  # what works for nobody in particular


@dataclass(frozen=True, slots=True)
class Caller:
    """An admitted client and its limits; None means no limit. Takes the place of DRF's user."""

    name: str
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    offline: bool = False  # nobody waits for its answers: they come after everyone else's
    operator: bool = False  # may see, stop and resume everyone's requests
    is_authenticated = True

    @property
    def may_change_model(self) -> bool:
        """Sweeps over models may, beside operators: they are made in the admin."""
        return self.operator or self.name == WORKER


# The older servers knew the password alone, and whoever had it ruled over all requests. So it is here.
SHARED_PASSWORD = Caller("password", operator=True)
LOOPBACK = Caller("loopback", operator=True)


class KeyAuthentication(BaseAuthentication):
    """Yields None for a client that shows nothing valid: whether that matters is the permission's part."""

    def authenticate(self, request: Request) -> tuple[Caller, None] | None:
        body_password = request.payload.field("password")
        for secret in (_bearer_token(request), body_password if isinstance(body_password, str) else ""):
            caller = _caller(secret) if secret else None
            if caller:
                return caller, None
        if _is_loopback(request) and not _secrets_exist() and not _strange_page(request):
            return LOOPBACK, None
        return None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class Admitted(BasePermission):
    """Authenticated callers; on a view marked `may_be_open`, everyone where OPEN_ROUTES is on."""

    def has_permission(self, request: Request, view: object) -> bool:
        if request.user is not None or (getattr(view, "may_be_open", False) and settings.RWKV.open_routes):
            return True
        if (reason := _strange_page(request)) and _is_loopback(request) and not _secrets_exist():
            raise exceptions.PermissionDenied(reason)  # a key would help, but so would being another page
        return False


class Memory:
    """Answers of the database, remembered for REMEMBER_SECONDS. For several threads."""

    def __init__(self) -> None:
        self._answers: dict[bytes, tuple[float, Future[Any]]] = {}  # with the time at which they are forgotten
        self._lock = threading.Lock()

    def recall(self, question: bytes, ask: Callable[[], T]) -> T:
        """What is remembered, or what `ask` says: it is asked once, however many want to know at the same time.

        Raises what `ask` raises, for all who waited for it; nothing is remembered then.
        """
        own: Future[Any] = Future()
        with self._lock:
            until, answer = self._answers.get(question, (0.0, own))
            if time.monotonic() >= until:
                if len(self._answers) >= REMEMBERED_KEYS:
                    self._answers.clear()
                answer = own
                self._answers[question] = math.inf, own
        if answer is own:
            self._settle(question, ask, own)
        return cast(T, answer.result())

    def _settle(self, question: bytes, ask: Callable[[], T], answer: Future[Any]) -> None:
        try:
            found = ask()
        except BaseException as error:  # whatever it is: who waits must not do so for ever
            self._answers.pop(question, None)
            answer.set_exception(error)
        else:
            self._answers[question] = time.monotonic() + REMEMBER_SECONDS, answer
            answer.set_result(found)

    def forget(self) -> None:
        self._answers.clear()


memory = Memory()
_ANY_KEY = b"any key"


def _caller(secret: str) -> Caller | None:
    password = settings.RWKV.api_password
    if password and hmac.compare_digest(secret.encode(), password.encode()):
        return SHARED_PASSWORD
    owner = worker_key.verify(secret)
    if owner is not None:
        return Caller(owner or WORKER, offline=True)
    return memory.recall(hashlib.sha256(secret.encode()).digest(), lambda: _holder(secret))


def _holder(secret: str) -> Caller | None:
    key = ApiKey.objects.verify(secret)
    return Caller(f"key-{key.pk}", key.requests_per_minute, key.max_concurrent) if key else None


def _secrets_exist() -> bool:
    if settings.RWKV.api_password:
        return True
    return memory.recall(_ANY_KEY, lambda: ApiKey.objects.usable().exists())


def _bearer_token(request: HttpRequest | Request) -> str:
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "bearer":
        return ""
    return token.strip().encode("latin-1").decode("utf-8", errors="replace")  # WSGI reads headers as Latin-1


def _strange_page(request: HttpRequest | Request) -> str:
    """Why the page that calls is none of ours, or "": any page on the web can call its visitor's own machine.

    Programs name no origin, and neither do pages when they only read from their own server.
    """
    origin = request.META.get("HTTP_ORIGIN")
    allowed = settings.RWKV.cors_origins
    try:
        host = request.get_host()
    except DisallowedHost:  # somebody's name that leads to this machine: the page calls it its own server
        return "this server has no such name: add it to TRUSTED_HOSTS"
    if origin is None or "*" in allowed or origin in allowed or is_own(origin, host):
        return ""
    return "pages of other sites may not call this server without a key: CORS_ORIGINS does not name this one"


def _is_loopback(request: HttpRequest | Request) -> bool:
    """A client on this machine. One that a proxy on this machine forwards is not."""
    if "HTTP_X_FORWARDED_FOR" in request.META or "HTTP_FORWARDED" in request.META:
        return False
    try:
        address = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
