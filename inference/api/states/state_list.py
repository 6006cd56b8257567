"""/state/status and /state/delete: the caller's own sessions."""

import logging
from collections.abc import Collection
from datetime import UTC
from typing import Any

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.generating.session_key import session_key
from inference.api.generating.turns import in_database
from inference.api.native.replies import SessionDeletion, SessionItem, SessionList
from inference.api.rows.engines import bus, live_engines
from inference.api.states.state import SessionKey
from inference.bus.call import NoEngine
from sessions.models import Session
from sessions.store import delete_sessions

log = logging.getLogger(__name__)

MOST_LISTED = 10_000
DEVICE, HOST, DATABASE = "L1 (VRAM)", "L2 (RAM)", "Database (Disk)"
LEVELS = (DEVICE, HOST, DATABASE)


class StatusBody(msgspec.Struct, kw_only=True):
    password: str | None = None


class DeleteBody(msgspec.Struct, kw_only=True):
    """`delete_prefix` also deletes every session whose id begins with this one and a colon."""

    session_id: SessionKey | None = None
    delete_prefix: bool | None = None
    password: str | None = None


class StateStatusView(ApiView):
    native_errors = True

    @operation("List the caller's sessions", tag="sessions", replies=(SessionList,), statuses=(401, 429, 503))
    async def get(self, request: Request) -> HttpResponse:
        rows, total = await in_database(read_sessions, request.user.name)
        engines = await live_engines()
        on_device = {name.hex() for engine in engines for name in engine.device_states}
        on_host = {name.hex() for engine in engines for name in engine.host_states}
        return json_response(list_sessions(rows, total, on_device, on_host))

    @operation(
        "List the caller's sessions",
        tag="sessions",
        request=StatusBody,
        replies=(SessionList,),
        statuses=(400, 401, 429, 503),
    )
    async def post(self, request: Request) -> HttpResponse:
        return await self.get(request)


class StateDeleteView(ApiView):
    native_errors = True

    @operation(
        "Delete a session",
        tag="sessions",
        request=DeleteBody,
        replies=(SessionDeletion,),
        statuses=(400, 401, 404, 429, 503),
    )
    async def post(self, request: Request) -> HttpResponse:
        body = request.payload.read(DeleteBody)
        key = session_key(request, body.session_id)
        if not key:
            raise InvalidRequest("Missing session_id parameter", param="session_id")
        found, names = await in_database(remove, request.user.name, key, bool(body.delete_prefix))
        try:
            await bus().forget_states(names)
        except NoEngine as error:  # they go when others need their place
            log.warning("the engines keep the states of deleted sessions for now: %s", error)
        if found or body.delete_prefix:
            return json_response(SessionDeletion("success", f"Session {key} deleted successfully"))
        missing = SessionDeletion("not_found", f"Session {key} not found in database")
        return json_response(missing, 404)


def read_sessions(owner: str) -> tuple[list[tuple[Any, ...]], int]:
    """(key, digest, last use) of the newest MOST_LISTED, and how many there are."""
    sessions = Session.objects.present().filter(owner=owner)
    rows = list(sessions.values_list("key", "digest", "last_used")[:MOST_LISTED])
    return rows, len(rows) if len(rows) < MOST_LISTED else sessions.count()


def list_sessions(
    rows: list[tuple[Any, ...]], total: int, on_device: Collection[str], on_host: Collection[str]
) -> SessionList:
    """Every session once, by the highest level that has its state; in each level the newest first."""
    items: dict[str, list[SessionItem]] = {level: [] for level in LEVELS}
    for key, digest, last_used in rows:
        level = DEVICE if digest in on_device else HOST if digest in on_host else DATABASE
        updated = "In Memory" if level != DATABASE else last_used.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        items[level].append(SessionItem(key, level, updated, last_used.timestamp()))
    in_memory = len(items[DEVICE]) + len(items[HOST])
    return SessionList(
        total_sessions=total,
        l1_cache_count=len(items[DEVICE]),
        l2_cache_count=len(items[HOST]),
        database_count=total - in_memory,
        sessions=[item for level in LEVELS for item in items[level]],
    )


def remove(owner: str, key: str, with_prefix: bool) -> tuple[bool, list[bytes]]:
    """Whether there was anything to delete, and the names of the states that nobody can ask for any more."""
    family = Session.objects.family(owner, key)
    chosen = family if with_prefix else [session for session in family if session.key == key]
    return bool(chosen), delete_sessions(chosen)
