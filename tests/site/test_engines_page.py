import asyncio
import dataclasses
from http import HTTPStatus

import msgspec
import pytest
import redis
from asgiref.sync import sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.urls import reverse

from inference.bus import keys
from inference.bus.messages import EngineStatus, ModelInfo, RunningRow
from inference.pages.routing import websocket_urlpatterns

pytestmark = pytest.mark.django_db
PAGE = "admin:inference_engine_changelist"


@pytest.fixture
def connection(redis_url):
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


def engine_status(**changes) -> EngineStatus:
    model = ModelInfo(
        id="rwkv7-test", layers=2, width=64, vocab=65536, parameters=12_300_000, fingerprint="f", random=True
    )
    row = RunningRow(
        web="w", row=1, request_id="req-<17>", endpoint="/v1/completions", state="prefill", prompt_tokens=5000,
        prefilled_tokens=1024, generated_tokens=0, max_tokens=99, created=1.0,
    )  # fmt: skip
    fields = {
        "engine": "engine-7", "state": "ready", "host": "box", "pid": 4711, "started": 1.0, "updated": 2.0,
        "model": model, "backend": "torch", "device": "cpu", "slots": 16, "running": 1, "rows": [row],
    }  # fmt: skip
    return EngineStatus(**{**fields, **changes})


def put(connection: redis.Redis, status: EngineStatus) -> None:
    connection.sadd(keys.ENGINES, status.engine)
    connection.set(keys.engine(status.engine), msgspec.msgpack.encode(status))


def communicator(user) -> WebsocketCommunicator:
    found = WebsocketCommunicator(URLRouter(websocket_urlpatterns), "/ws/admin/engines/")
    found.scope["user"] = user
    return found


def test_the_page_says_that_no_engine_is_alive(admin_client, connection):
    page = admin_client.get(reverse(PAGE))
    assert page.status_code == HTTPStatus.OK
    assert "No engine is alive" in page.text


def test_the_page_shows_engines_models_queues_and_running_requests(admin_client, connection):
    put(connection, engine_status())
    for _ in range(3):
        connection.xadd(keys.requests("rwkv7-test"), {"m": b""})
    page = admin_client.get(reverse(PAGE)).text
    for text in ("engine-7", "rwkv7-test (random weights)", "12.3 M", "torch on cpu", "1,024 of 5,000"):
        assert text in page
    assert "req-&lt;17&gt;" in page
    queue = page[page.index("Interactive rows waiting") :]
    assert "3" in queue[: queue.index("</table>")].split("rwkv7-test")[1]


def test_an_engine_that_loads_shows_how_far_it_is(admin_client, connection):
    put(connection, engine_status(state="loading", model=None, backend="", progress=0.42, rows=[]))
    assert "width: 42%" in admin_client.get(reverse(PAGE)).text


def test_the_page_needs_no_query_of_its_own(admin_client, connection, django_assert_max_num_queries):
    put(connection, engine_status())
    with django_assert_max_num_queries(2):  # the login session and its user
        admin_client.get(reverse(PAGE))


def test_polling_gives_the_same_fragment(admin_client, connection):
    put(connection, engine_status())
    answer = admin_client.get(reverse("admin:inference_engine_data"))
    assert "engine-7" in answer.json()["html"]
    assert "no-store" in answer.headers["Cache-Control"]


def test_without_redis_the_page_says_so(admin_client, settings):
    settings.RWKV = dataclasses.replace(settings.RWKV, redis_url="unix:///nowhere/redis.sock")
    assert "Redis does not answer" in admin_client.get(reverse(PAGE)).text


@pytest.mark.django_db(transaction=True)
async def test_the_live_page_follows_the_engines(connection):
    user = await sync_to_async(User.objects.create_superuser)("ada")
    live = communicator(user)
    connected, _ = await live.connect()
    assert connected
    assert "No engine is alive" in (await live.receive_json_from(5))["html"]
    put(connection, engine_status())
    async with asyncio.timeout(10):
        while "engine-7" not in (await live.receive_json_from(5))["html"]:
            pass
    await live.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_the_live_page_is_for_staff_who_may_view_engines(connection):
    user = await sync_to_async(User.objects.create_user)("sam", is_staff=True)
    visitor = await sync_to_async(User.objects.create_user)("vic")
    for stranger in (AnonymousUser(), user, visitor):
        connected, _ = await communicator(stranger).connect()
        assert not connected
    permission = await Permission.objects.aget(codename="view_engine")
    await user.user_permissions.aadd(permission)
    live = communicator(await User.objects.aget(username="sam"))
    connected, _ = await live.connect()
    assert connected
    await live.disconnect()
