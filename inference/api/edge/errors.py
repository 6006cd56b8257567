"""Every error a client can get: one exception tree, and one handler that makes the response.

OpenAI-style routes answer `{"error": {"message", "type", "param", "code"}}`; the native routes of
the older RWKV servers answer `{"error": "<message>"}`, which their clients read as a string.
"""

import logging
import math
import time
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404, HttpResponse
from redis.exceptions import RedisError
from rest_framework import exceptions as drf

from inference.api.edge.responses import json_response
from inference.api.rows.engines import bus
from inference.api.rows.generation import GenerationFailed
from inference.api.rows.request import TooManyTokens, WrongState
from inference.bus.call import BusError, NoEngine, QueueFull, RowFailed
from inference.bus.messages import ErrorRecord
from rwkvsite.logs import request_id

log = logging.getLogger(__name__)

UNAUTHORIZED = "Unauthorized: invalid or missing password"


class ApiError(Exception):
    """An answer other than success. `retry_after` is in seconds; `extra` joins a native error body."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.retry_after = retry_after
        self.extra = extra or {}


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class BatchTooLarge(InvalidRequest):
    """More prompts in one request than the service takes. A native stream says so in its one frame."""


class Unauthorized(InvalidRequest):
    status = 401
    code = "invalid_api_key"


class Forbidden(InvalidRequest):
    status = 403


class NotFound(InvalidRequest):
    status = 404


class MethodNotAllowed(InvalidRequest):
    status = 405


class Conflict(InvalidRequest):
    """Another request is at it, or has been."""

    status = 409


class TooLarge(InvalidRequest):
    status = 413


class RateLimited(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Overloaded(RateLimited):
    """The queue is full; nothing was queued."""


class Unavailable(ApiError):
    """No engine can serve the request now."""

    status = 503


_BY_STATUS: dict[int, type[ApiError]] = {
    error.status: error
    for error in (InvalidRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, TooLarge, RateLimited)
}


def as_api_error(exc: Exception) -> ApiError:
    """Any exception as one of ours. What nobody expected becomes a plain 500 that reveals nothing."""
    match exc:
        case ApiError():
            return exc
        case RedisError():
            return Unavailable("the message bus is not reachable", retry_after=NoEngine.retry_after)
        case QueueFull():
            return Overloaded(str(exc), retry_after=exc.retry_after)
        case WrongState():
            return InvalidRequest(str(exc), param="state_id")
        case TooManyTokens():
            return InvalidRequest(str(exc), code="context_length_exceeded")
        case GenerationFailed(__cause__=BusError() as cause):
            return as_api_error(cause)
        case GenerationFailed() | RowFailed(passes=False):  # no 503, after which clients ask again and again
            return ApiError(str(exc))
        case BusError():
            return Unavailable(str(exc), retry_after=exc.retry_after)
        case OperationalError():
            return Unavailable("the database is not available", retry_after=NoEngine.retry_after)
        case RequestDataTooBig():
            return TooLarge("the request body is too large")
        case Http404():
            return NotFound("there is no such route")
        case PermissionDenied():
            return Forbidden("this is not allowed")
        case drf.NotAuthenticated() | drf.AuthenticationFailed():
            return Unauthorized(UNAUTHORIZED)
        case drf.Throttled():
            return RateLimited("too many requests for this key", retry_after=math.ceil(exc.wait or 1))
        case drf.APIException():
            return _BY_STATUS.get(exc.status_code, ApiError)(str(exc.detail))
    return ApiError("internal server error")


def error_body(error: ApiError, *, native: bool) -> dict[str, Any]:
    if native:
        return {"error": error.message, **error.extra}
    return {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code},
    }


def error_response(error: ApiError, *, native: bool) -> HttpResponse:
    response = json_response(error_body(error, native=native), error.status)
    if error.retry_after is not None:
        response["Retry-After"] = str(error.retry_after)
    if error.status == Unauthorized.status:
        response["WWW-Authenticate"] = "Bearer"
    return response


def report_error(exc: Exception, error: ApiError, where: str) -> None:
    """Tell operators, if it is the service's failure: what a client did wrong is not, and may hold what it sent."""
    if error.status < 500 and not isinstance(error, Overloaded):
        return
    expected = isinstance(exc, ApiError | BusError | GenerationFailed | RedisError)
    message = error.message if expected else f"{error.message} ({type(exc).__name__})"
    record = ErrorRecord(
        time=time.time(), where=where, status=error.status, request_id=request_id.get(), message=message
    )
    bus().report(record)


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse:
    """The Django REST framework's handler of everything a view of this package raises."""
    error = as_api_error(exc)
    if not isinstance(exc, ApiError | BusError | GenerationFailed) and error.status >= 500:
        log.error("request %s failed", getattr(context["view"], "request_id", ""), exc_info=exc)
    report_error(exc, error, context["view"].request.path)
    response = error_response(error, native=getattr(context["view"], "native_errors", False))
    if error.status == MethodNotAllowed.status:
        response["Allow"] = ", ".join(context["view"].allowed_methods)
    return response
