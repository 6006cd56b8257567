"""Live pages over WebSockets."""

import asyncio

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from inference.pages.engines import render_snapshot

FORBIDDEN = 4403  # a close code of our own, after HTTP's 403


class EnginesConsumer(AsyncJsonWebsocketConsumer):
    """Send the snapshot of the engines page every second, to staff who may see it."""

    INTERVAL_SECONDS = 1.0

    async def connect(self) -> None:
        self.sender: asyncio.Task[None] | None = None
        user = self.scope["user"]
        may_view = await sync_to_async(user.has_perm)("inference.view_engine")
        if not (user.is_staff and may_view):
            await self.close(code=FORBIDDEN)
            return
        await self.accept()
        self.sender = asyncio.create_task(self._send_snapshots())

    async def disconnect(self, code: int) -> None:
        if self.sender:
            self.sender.cancel()

    async def _send_snapshots(self) -> None:
        while True:
            await self.send_json({"html": await sync_to_async(render_snapshot, thread_sensitive=False)()})
            await asyncio.sleep(self.INTERVAL_SECONDS)
