"""The live operations page of one process: looked up and rendered once, however many people watch.

Every LOOK_SECONDS there is one look at Redis, and one rendering and one encoding for each language among the viewers. A
viewer costs what sending costs, and so there is one frame for all that changes with every look.
"""

import asyncio
import itertools
import json
import logging
import time

import redis
from channels.db import database_sync_to_async
from django.utils import translation

from inference.pages.operations import Snapshot, read_snapshot
from inference.pages.operations_view import render_charts, render_now

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
LOOKS_PER_CHARTS = 15  # they are large, and a step of theirs takes a minute


class Viewer:
    """One open page. A part that was not sent yet when it changes again is sent once, as it is then."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._unsent: dict[str, str] = {}
        self._news = asyncio.Event()

    def put(self, part: str, frame: str) -> None:
        self._unsent[part] = frame
        self._news.set()

    async def take(self) -> str:
        """The next frame to send, a JSON object of `part` and `html`."""
        await self._news.wait()
        frame = self._unsent.pop(next(iter(self._unsent)))
        if not self._unsent:
            self._news.clear()
        return frame


class Feed:
    """Looks while somebody watches, and rests when nobody does.

    Leaving cancels no look: a cancellation can get lost in the thread that looks, and then there would be no end to it.
    """

    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()
        self._frames: dict[str, dict[str, str]] = {}  # language -> part -> its newest frame
        self._looking: asyncio.Task[None] | None = None

    def join(self, language: str) -> Viewer:
        viewer = Viewer(language)
        for part, frame in self._frames.get(language, {}).items():
            viewer.put(part, frame)
        self._viewers.add(viewer)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    async def _look(self) -> None:
        looks = itertools.count()
        try:
            while self._viewers:
                try:
                    await self._look_once(charts=next(looks) % LOOKS_PER_CHARTS == 0)
                except Exception:  # whatever it was: the page goes on with the next look
                    log.exception("a look at the operations failed")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._frames = {}

    async def _look_once(self, *, charts: bool) -> None:
        snapshot = await database_sync_to_async(read_snapshot, thread_sensitive=False)()
        for language in {viewer.language for viewer in self._viewers}:
            with_charts = charts or "charts" not in self._frames.get(language, {})
            parts = await asyncio.to_thread(render_parts, language, snapshot, with_charts=with_charts)
            self._publish(language, parts)

    def _publish(self, language: str, parts: dict[str, str]) -> None:
        """Send each part that is not as it was."""
        frames = self._frames.setdefault(language, {})
        for part, html in parts.items():
            frame = json.dumps({"part": part, "html": html}, ensure_ascii=False)
            if frames.get(part) == frame:
                continue
            frames[part] = frame
            for viewer in self._viewers:
                if viewer.language == language:
                    viewer.put(part, frame)


def render_parts(language: str, snapshot: Snapshot, *, with_charts: bool) -> dict[str, str]:
    """HTML by the name of the part. Without Redis there are no charts, and the other part says so."""
    with translation.override(language):
        parts = {"now": render_now(snapshot)}
        if with_charts and not snapshot.failure:
            try:
                parts["charts"] = render_charts()
            except redis.RedisError as error:
                log.warning("reading the last hour: %s", error)
        return parts


def poll(language: str) -> dict[str, str]:
    """All parts, for a page without a socket: as they are, or were less than LOOK_SECONDS ago."""
    until, parts = _polled.get(language, (0.0, {}))
    if time.monotonic() > until:
        parts = render_parts(language, read_snapshot(), with_charts=True)
        _polled[language] = (time.monotonic() + LOOK_SECONDS, parts)
    return parts


feed = Feed()  # of this process, as are:
_polled: dict[str, tuple[float, dict[str, str]]] = {}  # language -> until when they hold, parts
