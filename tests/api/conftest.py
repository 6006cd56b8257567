"""Two ways to the API: `client` calls the views in this process, without an engine; `api` is the whole service."""

import dataclasses
import http.client
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import openai
import pytest
import redis
from django.core.cache import cache
from django.test import AsyncClient

from inference.api.edge import auth
from inference.api.rows.engines import bus
from inference.bus import keys
from inference.bus.messages import EngineStatus, ModelInfo
from tests.ending_model import make_ending_checkpoint
from tests.service import Service, wait_until

session_numbers = count()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reply(self) -> Any:
        """The decoded body of a success."""
        assert self.status == 200, self.body
        return self.json

    @property
    def frames(self) -> list[Any]:
        """The decoded events of a stream, which must end with [DONE]."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        assert all(event.startswith("data: ") for event in events)
        return [json.loads(event.removeprefix("data: ")) for event in events]


class Api:
    """Plain HTTP requests to a running service."""

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self.url = url
        self.timeout = timeout  # of one request, in seconds

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """`body` may be bytes, or anything that json.dumps takes (which writes NaN as NaN)."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=self.timeout)
        try:
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.send("POST", path, body, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)


ENDING_QUEUE = 48  # rows that may wait in the service of `ending_api`


@pytest.fixture
def session() -> str:
    """A session id that no other test uses."""
    return f"session {next(session_numbers)}"


@pytest.fixture
def api(service: Service) -> Api:
    return Api(service.url)


@pytest.fixture(scope="session")
def ending_checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    path = tmp_path_factory.mktemp("ending") / "rwkv7-ending.pth"
    make_ending_checkpoint(tiny_checkpoint, path)
    return path


@pytest.fixture(scope="session")
def ending_api(tmp_path_factory: pytest.TempPathFactory, ending_checkpoint: Path) -> Iterator[Api]:
    """A service whose model ends its texts by itself."""
    service = Service(tmp_path_factory.mktemp("var"), MODEL=str(ending_checkpoint), MAX_QUEUE=str(ENDING_QUEUE))
    try:
        yield Api(service.wait_until_healthy().url)
    finally:
        service.stop()


@pytest.fixture(scope="session")
def two_webs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Api]:
    """Two web processes, and three checkpoints in the folder: `first` (served), `second`, and a broken one."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        (folder / f"{name}.pth").write_bytes(tiny_checkpoint.read_bytes())
    (folder / "broken.pth").write_bytes(b"not a checkpoint")
    service = Service(tmp_path_factory.mktemp("var"), MODEL=str(folder / "first.pth"), WEB_PROCESSES="2")
    try:
        api = Api(service.wait_until_healthy().url, timeout=240.0)  # a change of models starts a program
        wait_until(lambda: all(api.get("/health").status == 200 for _ in range(20)), 30, "both see the engine")
        yield api
    finally:
        service.stop()


@pytest.fixture
def sdk(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def client(redis_url: str, transactional_db: None) -> AsyncIterator[AsyncClient]:
    """A client on this machine. Nothing is remembered of earlier tests: no key, no count, no engine."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    auth.memory.forget()
    yield AsyncClient()
    await bus().close()
    cache.close()


class ClientAt(AsyncClient):
    """A client at an IP address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def _base_scope(self, **request: Any) -> dict[str, Any]:
        return {**super()._base_scope(**request), "client": [self.address, 4711]}


@pytest.fixture
def remote(client: AsyncClient) -> AsyncClient:
    """A client on another machine."""
    return ClientAt("203.0.113.7")


@pytest.fixture
def change_settings(settings) -> Callable[..., None]:
    """Change fields of settings.RWKV for one test."""

    def change(**fields: Any) -> None:
        settings.RWKV = dataclasses.replace(settings.RWKV, **fields)

    return change


@pytest.fixture
def deaf_engine(redis_url: str, client: AsyncClient) -> None:
    """An engine that claims to be ready, and never takes a request."""
    model = ModelInfo(id="deaf", layers=1, width=64, vocab=65536, parameters=1, fingerprint="0" * 64)
    status = EngineStatus(engine="deaf", state="ready", host="", pid=0, started=0.0, updated=0.0, model=model)
    with redis.Redis.from_url(redis_url) as connection:
        connection.sadd(keys.ENGINES, "deaf")
        connection.set(keys.engine("deaf"), msgspec.msgpack.encode(status))
