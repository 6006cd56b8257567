"""The view that every endpoint extends: the Django REST framework's, run asynchronously.

One hop to a thread does everything that may block (body, key, throttle); the database connection is
given back before the handler runs, because a stream keeps its request's thread until it ends.
"""

from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from inference.api.edge import errors
from inference.api.edge.auth import Admitted, KeyAuthentication
from inference.api.edge.cors import add_cors_headers
from inference.api.edge.database import close_connections
from inference.api.edge.initial_state import read_initial_state
from inference.api.edge.request_counts import count_request
from inference.api.edge.schemas import Payload
from inference.api.edge.sse import EventStream, guard_stream
from inference.api.edge.throttles import KeyRateThrottle, Place, take_place
from inference.api.rows.generation import Generation
from inference.api.rows.request import caller, initial_state


class ApiView(APIView):
    """Handlers are `async def get(self, request)` and the like, and return a Django response.

    `request.payload` is the JSON body; `request.user` the Caller, or None.
    """

    authentication_classes = [KeyAuthentication]
    permission_classes = [Admitted]
    throttle_classes = [KeyRateThrottle]
    parser_classes = [JSONParser]  # named for the schema only: bodies are read by Payload
    renderer_classes = [JSONRenderer]
    may_be_open = False  # needs no key where OPEN_ROUTES is on
    native_errors = False  # errors are `{"error": "<string>"}`
    place: Place | None = None

    async def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.args, self.kwargs = args, kwargs
        self.headers = {}
        self.request_id = request.id
        self.request = request = self.initialize_request(request, *args, **kwargs)
        try:
            try:
                await sync_to_async(self.admit)(request)
                self.place = await take_place(request.user)
                caller.set(request.user.name if request.user else "")
                if request.method == "POST" and self.authentication_classes:  # only such routes generate
                    initial_state.set(await read_initial_state(request))
                handler = getattr(self, request.method.lower(), self.http_method_not_allowed)
                response = await handler(request, *args, **kwargs)
            except Exception as exc:
                response = self.handle_exception(exc)
        finally:
            if self.place:
                await self.place.release()
        add_cors_headers(request._request, response)
        count_request(request._request, response)
        return response

    def admit(self, request: Request) -> None:
        """Read the body and check the caller. Raises one of the API's or the framework's errors."""
        try:
            request.payload = Payload(b"")
            if request.method == "OPTIONS":
                request.user = None  # or the framework would look for the caller later, outside this thread
                return
            request.payload = self.read_payload(request)
            self.native_errors = self.answers_natively(request.payload)
            self.perform_authentication(request)
            self.check_permissions(request)
            self.check_throttles(request)
        finally:
            close_connections()

    def read_payload(self, request: Request) -> Payload:
        """The JSON body. A view that reads its body in another form, or later, overrides this."""
        return Payload(read_body(request._request))

    def answers_natively(self, payload: Payload) -> bool:
        """Which form errors take, where the body decides it."""
        return self.native_errors

    async def options(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse(status=204, headers={"Allow": ", ".join(self.allowed_methods)})

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    async def stream(self, generation: Generation, frames: AsyncIterator[bytes]) -> EventStream:
        """The response that sends `frames`. The generation is cancelled when it ends, however it ends."""
        place, self.place = self.place, None
        stream = guard_stream(generation, frames, place, native=self.native_errors)
        await anext(stream)
        return EventStream(stream)


def read_body(request: HttpRequest) -> bytes:
    """Raises TooLarge, before reading where the client announces the length."""
    limit = settings.RWKV.max_body_bytes
    announced = request.META.get("CONTENT_LENGTH", "")
    if not (announced.isdecimal() and int(announced) > limit):
        body = request.read(limit + 1)
        if len(body) <= limit:
            return body
    raise errors.TooLarge(f"the request body is larger than {limit} bytes")
