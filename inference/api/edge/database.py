"""Connections of the threads that a request hops to."""

from django.db import connections


def close_connections() -> None:
    """Give this thread's connections back: a stream would keep them until it ends."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
