from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.utils import translation

from rwkvsite import redis_server
from rwkvsite.env import redis_socket
from tests.service import Service

# Folders whose files take longest, for a suite in several processes: what begins last must not be what ends last.
LONGEST_FIRST = ("service_tests", "translation", "benchmarks", "evals", "browser", "site", "api")
SERVICES = ("ending_api", "two_webs", "leaning")  # each takes a process 15 s of CPU time to start


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, a file's tests stay together, and so do those that share a service of their own."""

    def turn(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=turn)
    for item in items:
        shared = [name for name in SERVICES if name in getattr(item, "fixturenames", ())]
        item.add_marker(pytest.mark.xdist_group(shared[0] if shared else item.location[0]))


@pytest.fixture(autouse=True)
def no_language_stays() -> Iterator[None]:
    """A page that was asked for in Chinese leaves its language to the thread."""
    yield
    translation.deactivate()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis for the tests alone; TEST_REDIS_URL names one, and what it holds is deleted."""
    if given := settings.TEST_REDIS_URL:
        with redis.Redis.from_url(given) as connection:
            connection.flushdb()
        yield given
        return
    var_dir = settings.RWKV.var_dir
    with redis_server.running(redis_socket(var_dir), var_dir / "redis") as url:
        yield url


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that a CPU runs in no time."""
    from inference.engine.synthetic import make_checkpoint

    path = tmp_path_factory.mktemp("checkpoint") / "rwkv7-random-tiny.pth"
    make_checkpoint(path, "tiny")
    return path


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    """The whole service, started once: engine, web, Celery and a Redis of its own."""
    service = Service(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), SERVE_CELERY="true")
    try:
        yield service.wait_until_healthy()
    finally:
        service.stop()
