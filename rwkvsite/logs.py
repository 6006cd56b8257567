"""What is logged: lines carry the id of their request, and a refused request is no news."""

import logging
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class RequestIdFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class RefusalFilter(logging.Filter):
    """Drop Django's line for each 4xx and 503 answer: a busy API gives many. Crashes (500) stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(record, "status_code", 500) == 500
