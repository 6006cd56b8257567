from django.urls import path

from inference.pages.consumers import OperationsConsumer

websocket_urlpatterns = [path("ws/admin/operations/", OperationsConsumer.as_asgi())]
