"""/v1/batches: jobs of many requests, run when nothing more urgent waits. A caller sees its own."""

from datetime import datetime
from typing import Any, Literal

import msgspec
from django.http import HttpResponse
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.database import in_thread
from inference.api.edge.errors import InvalidRequest, NotFound
from inference.api.edge.listing import Key, PageQuery, describe_query, ends, read_page, read_query
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import Metadata
from inference.batches.actions import NotCancellable, cancel_batch, create_batch
from inference.batches.lines import InputError
from inference.batches.models import BatchJob, StoredFile

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


class BatchBody(msgspec.Struct):
    input_file_id: Key
    endpoint: str
    completion_window: str = "24h"
    metadata: Metadata | None = None


class RequestCounts(msgspec.Struct):
    total: int
    completed: int
    failed: int


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class BatchUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ErrorList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[InputError]


class Batch(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: ErrorList | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Batch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class BatchListView(ApiView):
    @operation("Start a batch", tag="batches", request=BatchBody, replies=(Batch,), statuses=(400, 404))
    async def post(self, request: Request) -> HttpResponse:
        body = request.payload.read(BatchBody)
        if body.endpoint not in ENDPOINTS:
            raise InvalidRequest(f"endpoint: expected one of {', '.join(ENDPOINTS)}", param="endpoint")
        return json_response(await in_thread(_create, request.user.name, body))

    @describe_query(PageQuery)
    @operation("List batches", tag="batches", replies=(BatchList,), statuses=(400,), operation_id="list_batches")
    async def get(self, request: Request) -> HttpResponse:
        return json_response(await in_thread(_list, request.user.name, read_query(request, PageQuery)))


class BatchView(ApiView):
    @operation("Describe a batch", tag="batches", replies=(Batch,), statuses=(404,))
    async def get(self, request: Request, key: str) -> HttpResponse:
        return json_response(await in_thread(_read, request.user.name, key))


class BatchCancelView(ApiView):
    @operation("Cancel a batch", tag="batches", replies=(Batch,), statuses=(400, 404))
    async def post(self, request: Request, key: str) -> HttpResponse:
        return json_response(await in_thread(_cancel, request.user.name, key))


def _create(owner: str, body: BatchBody) -> Batch:
    try:
        job = create_batch(
            owner=owner,
            input_file_key=body.input_file_id,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            metadata=body.metadata,
        )
    except StoredFile.DoesNotExist:
        raise NotFound(f"input_file_id: there is no file {body.input_file_id!r}", param="input_file_id") from None
    except ValueError as error:
        raise InvalidRequest(f"completion_window: {error}", param="completion_window") from error
    return _describe(job)


def _cancel(owner: str, key: str) -> Batch:
    job = _find(owner, key)
    try:
        cancel_batch(job)
    except NotCancellable as error:
        raise InvalidRequest(str(error)) from error
    return _describe(job)


def _read(owner: str, key: str) -> Batch:
    return _describe(_find(owner, key))


def _list(owner: str, query: PageQuery) -> BatchList:
    page, has_more = read_page(_owned(owner), query)
    data = [_describe(job) for job in page]
    return BatchList(data=data, has_more=has_more, **ends(data))


def _find(owner: str, key: str) -> BatchJob:
    job = _owned(owner).filter(key=key).first()
    if job is None:
        raise NotFound(f"there is no batch {key!r}", param="id")
    return job


def _owned(owner: str) -> Any:
    return BatchJob.objects.filter(owner=owner).select_related("input_file", "output_file", "error_file")


def _describe(job: BatchJob) -> Batch:
    return Batch(
        id=job.key,
        endpoint=job.endpoint,
        model=job.model or None,
        errors=ErrorList(data=msgspec.convert(job.errors, list[InputError])) if job.errors else None,
        input_file_id=job.input_file.key,
        completion_window=job.completion_window,
        status=job.status,
        output_file_id=job.output_file.key if job.output_file else None,
        error_file_id=job.error_file.key if job.error_file else None,
        created_at=_seconds(job.created_at),
        in_progress_at=_seconds(job.in_progress_at),
        expires_at=_seconds(job.expires_at),
        finalizing_at=_seconds(job.finalizing_at),
        completed_at=_seconds(job.completed_at),
        failed_at=_seconds(job.failed_at),
        expired_at=_seconds(job.expired_at),
        cancelling_at=_seconds(job.cancelling_at),
        cancelled_at=_seconds(job.cancelled_at),
        request_counts=RequestCounts(job.total, job.completed, job.failed),
        usage=BatchUsage(
            job.input_tokens,
            InputTokensDetails(job.cached_tokens),
            job.output_tokens,
            OutputTokensDetails(job.reasoning_tokens),
            job.input_tokens + job.output_tokens,
        ),
        metadata=job.metadata,
    )


def _seconds(moment: datetime | None) -> int | None:
    return int(moment.timestamp()) if moment else None
