from collections.abc import Iterator

import pytest

from tests.loadgen.mock_server import running_mock_server


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    with running_mock_server() as url:
        yield url
