from django.urls import path

from inference.pages.consumers import EnginesConsumer

websocket_urlpatterns = [path("ws/admin/engines/", EnginesConsumer.as_asgi())]
