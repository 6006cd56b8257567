"""/v1/state/upload, list and delete: tuned states that requests can begin with, each caller's own."""

from typing import Literal

import msgspec
from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.database import in_thread
from inference.api.edge.errors import Conflict, InvalidRequest, TooLarge
from inference.api.edge.initial_state import state_key
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import Payload
from inference.api.generating.model import find_model
from inference.bus.messages import ModelInfo
from sessions.initial_states import StateInUse, TooManyStates, delete_state, keep_state, list_states, shape_of
from sessions.models import InitialState
from sessions.state_file import BadStateFile

MOST_BYTES = 512 * 2**20  # of any file; one that no state of the model can need is refused before
MULTIPART_BYTES = 2**20  # what multipart adds
UPLOAD = {
    "multipart/form-data": {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary"}},
    }
}


class StateObject(msgspec.Struct, kw_only=True):
    object: Literal["rwkv.state"] = "rwkv.state"
    state_id: str
    filename: str
    size_bytes: int
    tensor_count: int
    created: int
    model: str


class StateList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[StateObject]


class StateDeleteBody(msgspec.Struct, kw_only=True):
    state_id: str | None = None
    password: str | None = None


class StateListBody(msgspec.Struct, kw_only=True):
    password: str | None = None


class StateDeleted(msgspec.Struct):
    state_id: str
    deleted: bool


class InitialStateUploadView(ApiView):
    native_errors = True

    def read_payload(self, request: Request) -> Payload:
        """The file is read once the caller is admitted, and never into memory."""
        return Payload(b"")

    @extend_schema(request=UPLOAD)
    @operation("Upload a tuned state", tag="sessions", replies=(StateObject,), statuses=(400, 401, 409, 413, 429, 503))
    async def post(self, request: Request) -> HttpResponse:
        model = await find_model(None)
        return json_response(describe(await in_thread(store_upload, request._request, request.user.name, model)))


class InitialStateListView(ApiView):
    native_errors = True

    @operation("List the caller's tuned states", tag="sessions", replies=(StateList,), statuses=(401, 429))
    async def get(self, request: Request) -> HttpResponse:
        states = await in_thread(list_states, request.user.name)
        return json_response(StateList(data=[describe(state) for state in states]))

    @operation(
        "List the caller's tuned states",
        tag="sessions",
        request=StateListBody,
        replies=(StateList,),
        statuses=(401, 429),
    )
    async def post(self, request: Request) -> HttpResponse:
        return await self.get(request)


class InitialStateDeleteView(ApiView):
    native_errors = True

    @operation(
        "Delete a tuned state",
        tag="sessions",
        request=StateDeleteBody,
        replies=(StateDeleted,),
        statuses=(400, 401, 404, 409, 429),
    )
    async def post(self, request: Request) -> HttpResponse:
        key = state_key(request) or request.query_params.get("state_id", "")
        if not key:
            raise InvalidRequest("Missing state_id", param="state_id")
        try:
            deleted = await in_thread(delete_state, request.user.name, key)
        except StateInUse as error:
            raise Conflict(str(error), param="state_id") from error
        return json_response(StateDeleted(key, deleted), 200 if deleted else 404)

    @operation("Delete a tuned state", tag="sessions", replies=(StateDeleted,), statuses=(400, 401, 404, 409, 429))
    async def delete(self, request: Request) -> HttpResponse:
        return await self.post(request)


class BoundedUploadHandler(TemporaryFileUploadHandler):
    """Writes the first file to a temporary one, as far as `most` bytes go."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        if start + len(raw_data) > self._most:
            raise too_large(self._most)
        super().receive_data_chunk(raw_data, start)


def store_upload(request: HttpRequest, owner: str, model: ModelInfo) -> InitialState:
    """Read the request's body and keep its state. Raises InvalidRequest, Conflict and TooLarge."""
    most = min(MOST_BYTES, shape_of(model).most_bytes)
    announced = request.META.get("CONTENT_LENGTH", "")
    if announced.isdecimal() and int(announced) > most + MULTIPART_BYTES:
        raise too_large(most)
    request.upload_handlers = [BoundedUploadHandler(most)]
    try:
        files = list(request.FILES.values())
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidRequest(f"body: not usable as multipart/form-data: {error}") from error
    if len(files) != 1:
        raise InvalidRequest(f"file: expected one .pth file as multipart/form-data, found {len(files)}", param="file")
    with files[0] as file:
        try:
            return keep_state(owner, model, file.name, file.file, file.size)
        except BadStateFile as error:
            raise InvalidRequest(f"file: {error}", param="file") from error
        except TooManyStates as error:
            raise Conflict(str(error)) from error


def describe(state: InitialState) -> StateObject:
    return StateObject(
        state_id=state.key,
        filename=state.filename,
        size_bytes=state.size,
        tensor_count=state.tensor_count,
        created=int(state.created.timestamp()),
        model=state.model,
    )


def too_large(most: int) -> TooLarge:
    return TooLarge(f"file: expected at most {most} bytes, which any state of this model fits in", param="file")
