"""Threads that talk to Redis, each over a connection of its own, and outlive everything that goes wrong with it."""

import logging
import threading
import time
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2

Loop = Callable[[redis.Redis], None]  # runs until it is told to stop; begun again from the start when it raises


class RedisThreads:
    """Runs loops until `stopping` is set, which each of them has to watch."""

    def __init__(self, url: str) -> None:
        self.stopping = threading.Event()
        self._url = url
        self._threads: list[threading.Thread] = []

    def connect(self) -> redis.Redis:
        # No retries inside the client: each loop has its own, and none may hang in redis-py's.
        return redis.Redis.from_url(
            self._url, socket_timeout=5, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0), health_check_interval=0
        )

    def run(self, loop: Loop) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(loop,), name=loop.__qualname__, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self, until: float) -> None:
        """Wait for all of them, no longer than until `time.monotonic()` says so."""
        for thread in self._threads:
            thread.join(timeout=max(until - time.monotonic(), 0.0))

    def _run(self, loop: Loop) -> None:
        with self.connect() as connection:
            while not self.stopping.is_set():
                try:
                    return loop(connection)
                except (RedisError, OSError) as error:
                    log.warning("%s: %s", loop.__qualname__, error)
                except Exception:  # an engine that beats and no longer reads would be taken for a sound one
                    log.exception("%s failed", loop.__qualname__)
                self.stopping.wait(RECONNECT_SECONDS)
