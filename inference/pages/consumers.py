"""Live pages over WebSockets."""

import asyncio
from urllib.parse import parse_qs

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.utils.translation import get_supported_language_variant

from inference.pages.operations_feed import feed

FORBIDDEN = 4403  # a close code of our own, after HTTP's 403


class OperationsConsumer(AsyncWebsocketConsumer):
    """Send the parts of the operations page as they change, to staff who may see it.

    After LIFE_SECONDS the browser has to connect anew, and so to be allowed to anew.
    """

    LIFE_SECONDS = 300.0

    async def connect(self) -> None:
        self.sender: asyncio.Task[None] | None = None
        user = self.scope["user"]
        may_view = await sync_to_async(user.has_perm)("inference.view_engine")
        if not (user.is_staff and may_view):
            await self.close(code=FORBIDDEN)
            return
        await self.accept()
        self.sender = asyncio.create_task(self._send_parts(self._language()))

    async def disconnect(self, code: int) -> None:
        if self.sender:
            self.sender.cancel()

    def _language(self) -> str:
        """The page's own, which its script names: a socket has no middleware that would find it."""
        (wanted,) = parse_qs(self.scope["query_string"].decode("latin-1")).get("language", [""])[-1:]
        try:
            return get_supported_language_variant(wanted)
        except LookupError:
            return settings.LANGUAGE_CODE

    async def _send_parts(self, language: str) -> None:
        viewer = feed.join(language)
        try:
            async with asyncio.timeout(self.LIFE_SECONDS):
                while True:
                    await self.send(text_data=await viewer.take())
        except TimeoutError:
            await self.close()
        finally:
            feed.leave(viewer)
