"""/v1/files: the input and output files of batches. A caller sees its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, BinaryIO, Literal

import msgspec
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.database import in_thread
from inference.api.edge.errors import InvalidRequest, NotFound
from inference.api.edge.listing import PageQuery, describe_query, ends, read_page, read_query
from inference.api.edge.openapi import ADMISSION_STATUSES, json_schema, operation
from inference.api.edge.replies import ErrorReply
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import Payload
from inference.api.edge.uploads import store_upload
from inference.batches.actions import FileInUse, delete_file
from inference.batches.models import StoredFile

CHUNK_BYTES = 2**18
UPLOAD = {
    "multipart/form-data": {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"type": "string", "enum": ["batch"]},
        },
    }
}
CONTENT = {
    (200, "application/octet-stream"): OpenApiTypes.BINARY,
    **{(status, "application/json"): json_schema(ErrorReply) for status in (*ADMISSION_STATUSES, 404)},
}


class FileQuery(PageQuery, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    purpose: Annotated[str, Meta(pattern=r"^\w{1,20}$")] | None = None


class FileObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None


class FileList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FileListView(ApiView):
    def read_payload(self, request: Request) -> Payload:
        """Uploads are read once the caller is admitted, and never into memory."""
        return Payload(b"") if request.method == "POST" else super().read_payload(request)

    @extend_schema(request=UPLOAD)
    @operation("Upload the input of a batch", tag="batches", replies=(FileObject,), statuses=(400,))
    async def post(self, request: Request) -> HttpResponse:
        return json_response(_describe(await in_thread(store_upload, request._request, request.user.name)))

    @describe_query(FileQuery)
    @operation("List files", tag="batches", replies=(FileList,), statuses=(400,), operation_id="list_files")
    async def get(self, request: Request) -> HttpResponse:
        return json_response(await in_thread(_list, request.user.name, read_query(request, FileQuery)))


class FileView(ApiView):
    @operation("Describe a file", tag="batches", replies=(FileObject,), statuses=(404,))
    async def get(self, request: Request, key: str) -> HttpResponse:
        return json_response(_describe(await in_thread(find_file, request.user.name, key)))

    @operation("Delete a file", tag="batches", replies=(FileDeleted,), statuses=(400, 404))
    async def delete(self, request: Request, key: str) -> HttpResponse:
        await in_thread(_delete, request.user.name, key)
        return json_response(FileDeleted(id=key))


class FileContentView(ApiView):
    @extend_schema(responses=CONTENT)
    @operation("The content of a file", tag="batches")
    async def get(self, request: Request, key: str) -> HttpResponseBase:
        file = await in_thread(find_file, request.user.name, key)
        try:
            content = await asyncio.to_thread(file.path.open, "rb")
        except FileNotFoundError:
            raise NotFound(f"the content of {key!r} is gone") from None
        headers = {
            "Content-Length": str(file.bytes),
            "Content-Disposition": content_disposition_header(True, file.filename),
        }
        return StreamingHttpResponse(FileChunks(content), content_type="application/octet-stream", headers=headers)


class FileChunks:
    """A file as the body of a response, which closes it at its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await asyncio.to_thread(self._file.read, CHUNK_BYTES):
            yield chunk

    def close(self) -> None:
        self._file.close()


def find_file(owner: str, key: str) -> StoredFile:
    """Raises NotFound, also for the file of another caller."""
    file = StoredFile.objects.present().filter(owner=owner, key=key).first()
    if file is None:
        raise NotFound(f"there is no file {key!r}", param="id")
    return file


def _list(owner: str, query: FileQuery) -> FileList:
    files = StoredFile.objects.present().filter(owner=owner)
    if query.purpose:
        files = files.filter(purpose=query.purpose)
    page, has_more = read_page(files, query)
    data = [_describe(file) for file in page]
    return FileList(data=data, has_more=has_more, **ends(data))


def _delete(owner: str, key: str) -> None:
    try:
        delete_file(find_file(owner, key))
    except FileInUse as error:
        raise InvalidRequest(str(error)) from error


def _describe(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.key,
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
    )
