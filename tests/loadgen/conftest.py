from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from benchmarks.loadgen.capture import open_session
from tests.loadgen.mock_server import running_mock_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_mock_server() as url:
        yield url


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session
