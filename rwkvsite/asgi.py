"""What each web process runs: Django for HTTP, Channels for WebSockets."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rwkvsite.settings")
django_application = get_asgi_application()  # before the imports below, which need loaded apps

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from inference.pages.routing import websocket_urlpatterns  # noqa: E402
from rwkvsite.websockets import OwnPagesOnly  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": django_application,
        "websocket": OwnPagesOnly(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
