"""Browsers' worth of WebSockets that watch the operations page, each with a login of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from uuid import uuid4

import aiohttp
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.backends.db import SessionStore

SOCKET_PATH = "/ws/admin/operations/"
FIRST_FRAME_SECONDS = 60.0


@dataclass(slots=True)
class Received:
    """What all viewers together got."""

    frames: int = 0
    bytes: int = 0


@contextmanager
def logins(count: int) -> Iterator[list[str]]:
    """Keys of so many sessions of a user who may look at the page; both are deleted at the end."""
    user = User.objects.create_user(f"bench-viewer-{uuid4().hex[:8]}", is_staff=True)  # without a password
    sessions = []
    try:
        user.user_permissions.add(Permission.objects.get(codename="view_engine", content_type__app_label="inference"))
        for _ in range(count):
            session = SessionStore()
            session[SESSION_KEY] = str(user.pk)
            session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
            session[HASH_SESSION_KEY] = user.get_session_auth_hash()
            session.save()
            sessions.append(session)
        yield [session.session_key for session in sessions]
    finally:
        for session in sessions:
            session.delete()
        user.delete()


@asynccontextmanager
async def watching(base_url: str, session_keys: Sequence[str]) -> AsyncIterator[Received]:
    """One open page for each session; the block begins when all have got something.

    Raises aiohttp.ClientError where a socket is refused, TimeoutError where nothing comes.
    """
    received = Received()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        started = [asyncio.Event() for _ in session_keys]
        viewers = [
            asyncio.create_task(_view(http, base_url, key, received, event))
            for key, event in zip(session_keys, started, strict=True)
        ]
        try:
            ready = asyncio.create_task(_all_set(started))
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                done, _ = await asyncio.wait([ready, *viewers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what a viewer has met
            yield received
        finally:
            for task in (ready, *viewers):
                task.cancel()
            await asyncio.gather(ready, *viewers, return_exceptions=True)


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _view(
    http: aiohttp.ClientSession, base_url: str, session_key: str, received: Received, started: asyncio.Event
) -> None:
    """Watch, and connect anew when the server ends the socket, as the page does."""
    headers = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session_key}"}
    while True:
        async with http.ws_connect(base_url + SOCKET_PATH, origin=base_url, headers=headers) as socket:
            async for message in socket:
                received.frames += 1
                received.bytes += len(message.data)
                started.set()
