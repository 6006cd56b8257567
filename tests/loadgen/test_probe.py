"""What is asked of a server around a load, and of nobody else."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.loadgen import probe
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.target import Target, make_target

MODELS = {"data": [{"id": "elsewhere"}]}


class Elsewhere:
    """A server that nobody may ask; `asked` are the paths that somebody did."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.json_response(MODELS)


@pytest.fixture
async def elsewhere() -> AsyncIterator[tuple[Elsewhere, str]]:
    there, app = Elsewhere(), web.Application()
    app.router.add_get("/{path:.*}", there.answer)
    async with TestServer(app) as server:
        yield there, str(server.make_url("")).rstrip("/")


def target(url: str) -> Target:
    return make_target(checked_profile({"base_url": [url]}), run_id="0", synthetic=True)


async def test_a_redirect_is_not_followed(elsewhere: tuple[Elsewhere, str]) -> None:
    there, url = elsewhere

    async def send_away(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(url + request.path)

    app = web.Application()
    app.router.add_get("/{path:.*}", send_away)
    async with TestServer(app) as server:
        asked = target(str(server.make_url("")))
        assert await probe.find_model(asked) == ""
        assert await probe.inspect(asked) == {}
    assert there.asked == []


async def test_only_numbers_are_taken_from_a_page_of_metrics() -> None:
    page = """# HELP running Rows that have a slot
running{engine="a",model="m"} 3
spread_bucket{le="+Inf"} 7 1700000000
ratio NaN
most +Inf
version 1.2.3
commit e
small 1e-3
"""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=page if request.path == "/metrics" else "")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        found = await probe.inspect(target(str(server.make_url(""))))
    assert found == {"metrics": {'running{engine="a",model="m"}': 3.0, 'spread_bucket{le="+Inf"}': 7.0, "small": 0.001}}


async def test_the_servers_own_pages_are_read(elsewhere: tuple[Elsewhere, str]) -> None:
    there, url = elsewhere
    assert await probe.find_model(target(url)) == "elsewhere"
    assert (await probe.inspect(target(url)))["stats"] == MODELS
    assert set(there.asked) >= {"/v1/models", "/metrics", "/stats", "/props"}
