"""Every path that is no route: an error that API clients can read."""

from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import NotFound


class NotFoundView(ApiView):
    authentication_classes = []
    permission_classes = []
    throttle_classes = []

    async def get(self, request: Request, route: str) -> HttpResponse:
        raise NotFound(f"there is no route /{route}; see /docs/")

    post = put = patch = delete = get
