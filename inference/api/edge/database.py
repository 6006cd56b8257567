"""The database, for requests: one hop to a thread, whose connections are given back at once."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

P = ParamSpec("P")
R = TypeVar("R")


def close_connections() -> None:
    """Give this thread's connections back: a stream would keep them until it ends."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run what uses the ORM, and give its connection back at once."""

    def work() -> R:
        try:
            return function(*args, **kwargs)
        finally:
            close_connections()

    return await sync_to_async(work)()
