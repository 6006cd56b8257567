from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.service import Service
from tests.service_tests.clients import Client, EngineView, connected


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with connected(service) as client:
        yield client


@pytest.fixture
def engine(service: Service, tiny_checkpoint: Path) -> Iterator[EngineView]:
    view = EngineView(service, tiny_checkpoint.stem)
    yield view
    view.close()
