"""Which pages may open a WebSocket here: a browser lets any page do so, and sends our cookies along."""

from typing import Any

from channels.security.websocket import WebsocketDenier
from django.conf import settings

from rwkvsite.origins import is_own


class OwnPagesOnly:
    """Refuse pages of other hosts and other ports. A proxy may change the Host, so TRUSTED_HOSTS count as our own."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._refuse = WebsocketDenier.as_asgi()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin", "")
        admitted = is_own(origin, headers.get(b"host", "")) or origin in settings.CSRF_TRUSTED_ORIGINS
        return await (self._application if admitted else self._refuse)(scope, receive, send)
