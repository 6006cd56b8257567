"""The operations page without a browser: what it shows, who may see it, and orders to cancel."""

import asyncio
import dataclasses
import json
import time
from http import HTTPStatus

import msgspec
import pytest
import redis
from asgiref.sync import sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.urls import reverse

from inference.api.rows.engines import bus
from inference.bus import keys, operations
from inference.bus.messages import EngineSample, EngineStatus, ErrorRecord, ModelInfo, RunningRequest, RunningRow
from inference.pages.operations import merge
from inference.pages.operations_charts import STEP_SECONDS, steps_of
from inference.pages.operations_feed import Feed
from inference.pages.routing import websocket_urlpatterns
from tests.service import wait_until

pytestmark = pytest.mark.django_db
PAGE = "admin:inference_engine_changelist"
DATA = "admin:inference_engine_data"
CANCEL = "admin:inference_engine_cancel"


@pytest.fixture
def connection(redis_url):
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


@pytest.fixture
def staff(client):
    """A client that may look, and nothing else."""
    user = User.objects.create_user("sam", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_engine"))
    client.force_login(user)
    return client


def running_row(request_id: str = "req-<17>", **changes) -> RunningRow:
    fields = {
        "web": "w", "row": 1, "endpoint": "completions", "state": "prefill", "prompt_tokens": 5000,
        "prefilled_tokens": 1024, "generated_tokens": 0, "max_tokens": 99, "created": 1.0,
    }  # fmt: skip
    return RunningRow(request_id=request_id, **{**fields, **changes})


def engine_status(**changes) -> EngineStatus:
    model = ModelInfo(
        id="rwkv7-test", layers=2, width=64, vocab=65536, parameters=12_300_000, fingerprint="f", random=True
    )
    fields = {
        "engine": "engine-7", "state": "ready", "host": "box", "pid": 4711, "started": 1.0, "updated": 2.0,
        "model": model, "backend": "torch", "device": "cpu", "slots": 16, "running": 1, "rows": [running_row()],
    }  # fmt: skip
    return EngineStatus(**{**fields, **changes})


def put(connection: redis.Redis, status: EngineStatus) -> None:
    connection.sadd(keys.ENGINES, status.engine)
    connection.set(keys.engine(status.engine), msgspec.msgpack.encode(status))


def put_sample(connection: redis.Redis, **fields) -> None:
    pipeline = connection.pipeline()
    operations.add_sample(pipeline, EngineSample(**fields))
    pipeline.execute()


def put_error(connection: redis.Redis, **fields) -> None:
    pipeline = connection.pipeline()
    operations.add_error(pipeline, ErrorRecord(time=0.0, where="completions", **fields))
    pipeline.execute()


class Patient(WebsocketCommunicator):
    """The library gives up after a second."""

    async def connect(self, timeout: float = 15.0) -> tuple[bool, int | str | None]:
        return await super().connect(timeout)

    async def disconnect(self, code: int = 1000, timeout: float = 15.0) -> None:
        await super().disconnect(code, timeout)


def communicator(user, query: str = "") -> WebsocketCommunicator:
    found = Patient(URLRouter(websocket_urlpatterns), f"/ws/admin/operations/{query}")
    found.scope["user"] = user
    return found


async def part_of(live: WebsocketCommunicator, name: str) -> str:
    """The next frame of that part."""
    async with asyncio.timeout(15):
        while True:
            frame = json.loads(await live.receive_from(15))
            if frame["part"] == name:
                return frame["html"]


# -- what it shows


def test_the_page_says_that_no_engine_is_alive(admin_client, connection):
    page = admin_client.get(reverse(PAGE))
    assert page.status_code == HTTPStatus.OK
    assert "No engine is alive" in page.text
    assert "Nothing runs or waits" in page.text


def test_the_page_shows_engines_queues_and_requests(admin_client, connection):
    put(connection, engine_status(ttft_ms_p50=12.0, ttft_ms_p99=345.0))
    for _ in range(3):
        connection.xadd(keys.requests("rwkv7-test"), {"m": b""})
    page = admin_client.get(reverse(PAGE)).text
    for text in ("engine-7", "rwkv7-test, 12.3 M (random weights)", "torch, cpu", "1,024 of 5,000", "12 / 345 ms"):
        assert text in page
    assert "req-&lt;17&gt;" in page
    queue = page[page.index("Interactive rows waiting") :]
    assert "3" in queue[: queue.index("</table>")].split("rwkv7-test")[1]


def test_the_page_shows_the_levels_of_the_state_cache(admin_client, connection):
    put(connection, engine_status(device_states=[b"a", b"b"], host_states=[b"c"], cached_tokens=30, prompt_tokens=70))
    page = admin_client.get(reverse(PAGE)).text
    levels = page[page.index("L3, in the database") :]
    assert "30.0%" in levels[: levels.index("</table>")]


def test_an_engine_that_loads_shows_how_far_it_is(admin_client, connection):
    put(connection, engine_status(state="loading", model=None, backend="", progress=0.42, rows=[]))
    assert 'value="42"' in admin_client.get(reverse(PAGE)).text


def test_errors_are_shown_newest_first_and_escaped(admin_client, connection):
    put_error(connection, status=503, request_id="first", message="no engine is running")
    put_error(connection, status=500, request_id="second", message="<script>")
    page = admin_client.get(reverse(PAGE)).text
    assert page.index("second") < page.index("first")
    assert "&lt;script&gt;" in page


def test_only_the_last_errors_are_kept(connection):
    for number in range(operations.ERRORS_KEPT + 5):
        put_error(connection, message=f"number {number}")
    kept = operations.read_errors(connection)
    assert len(kept) == operations.ERRORS_KEPT
    assert kept[0].message == f"number {operations.ERRORS_KEPT + 4}"


@pytest.mark.django_db(transaction=True)
async def test_a_request_of_the_api_that_fails_is_among_the_errors(async_client, connection):
    answer = await async_client.post("/v1/completions", {"prompt": "a secret"}, content_type="application/json")
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    async with asyncio.timeout(10):
        while not (errors := operations.read_errors(connection)):
            await asyncio.sleep(0.01)
    await bus().close()
    (error,) = errors
    assert (error.where, error.status) == ("/v1/completions", 503)
    assert error.request_id == answer.headers["X-Request-ID"]
    assert "a secret" not in error.message


def test_what_a_client_does_wrong_is_no_error_of_the_service(client, connection):
    assert client.post("/v1/completions", b"{", content_type="application/json").status_code == HTTPStatus.BAD_REQUEST
    assert operations.read_errors(connection) == []


def test_the_page_takes_few_queries(admin_client, connection, django_assert_max_num_queries):
    put(connection, engine_status())
    with django_assert_max_num_queries(3):  # the login session, its user, and the newest sample of the levels
        admin_client.get(reverse(PAGE))


def test_polling_gives_the_same_parts(admin_client, connection):
    put(connection, engine_status())

    def answer():
        return admin_client.get(reverse(DATA))

    wait_until(lambda: "engine-7" in answer().json()["now"], 10, "the engine is seen")
    assert set(answer().json()) == {"now", "charts"}
    assert "no-store" in answer().headers["Cache-Control"]


def test_without_redis_the_page_says_so(admin_client, settings):
    settings.RWKV = dataclasses.replace(settings.RWKV, redis_url="unix:///nowhere/redis.sock")
    assert "Redis does not answer" in admin_client.get(reverse(PAGE)).text


def test_the_page_speaks_chinese(admin_client, connection):
    page = admin_client.get(reverse(PAGE), headers={"accept-language": "zh-CN"}).text
    assert "最近一小时" in page
    assert "Nothing runs or waits" not in page


# -- requests, put together


def test_a_request_is_as_far_as_the_first_of_its_rows():
    rows = [running_row("a", state="decode"), running_row("a", row=2, state="prefill")]
    about = {"endpoint": "completions", "model": "m", "prompt_tokens": 10_000, "generated_tokens": 7, "max_tokens": 198}
    running = [
        RunningRequest(id="a", created=1.0, **about),
        RunningRequest(id="b", created=0.5, **about),  # no engine has any of its rows
    ]
    queued, taken = merge(running, [engine_status(rows=rows)])
    assert (queued.id, queued.state, queued.rows) == ("b", "queued", 0)
    assert (taken.id, taken.state, taken.rows) == ("a", "prefill", 2)
    assert (taken.prompt_tokens, taken.prefilled_tokens, taken.generated_tokens) == (10_000, 2048, 7)


def test_a_request_whose_web_process_does_not_answer_is_shown_too():
    (request,) = merge([], [engine_status(rows=[running_row("a"), running_row("a", row=2)])])
    assert (request.rows, request.prompt_tokens, request.max_tokens) == (2, 10_000, 198)


# -- the last hour


def test_an_hour_has_steps_of_the_sums_over_the_engines():
    now = 100_000.0  # in the step that began at 99_960

    def sample(engine: str, rate: float, moment: float, **fields) -> tuple[float, EngineSample]:
        tokens = int(rate * (moment - now + 60))
        return moment, EngineSample(engine=engine, running=3, generated_tokens=tokens, **fields)

    moments = [now - 50, now - 40, now - 30, now - 20, now - 9, now]
    one = [sample("one", 10, moment, ttft_ms_p50=5.0) for moment in moments]
    steps = steps_of(one + [sample("two", 20, moment) for moment in moments], now)
    assert len(steps) == operations.HISTORY_SECONDS / STEP_SECONDS
    assert steps[0] == (-59, None)
    minute, last = steps[-1]
    assert minute == 0
    assert last.generated_rate == pytest.approx(30, rel=0.1)
    assert (last.running, last.ttft_ms_p50) == (6, 5.0)


def test_an_engine_that_starts_anew_does_not_bend_the_curves():
    samples = [
        (99_960.0, EngineSample(engine="old", generated_tokens=1_000_000)),
        (99_991.0, EngineSample(engine="new", generated_tokens=0)),
        (100_000.0, EngineSample(engine="new", generated_tokens=90)),
    ]
    assert steps_of(samples, 100_000.0)[-1][1].generated_rate == 10


def test_a_clock_that_was_set_back_leaves_the_page_as_it_is():
    """Until it is where it was, Redis numbers all samples by the same moment."""
    moments = (99_970.0, 99_980.0, 99_980.0, 99_980.0, 99_990.0)
    samples = [
        (moment, EngineSample(engine="one", generated_tokens=100 * number)) for number, moment in enumerate(moments)
    ]
    assert steps_of(samples, 100_000.0)[-1][1].generated_rate == 20
    assert steps_of(samples[1:3], 100_000.0)[-1][1] is None


def test_samples_older_than_an_hour_are_not_read(connection):
    connection.xadd(keys.SAMPLES, {"m": msgspec.msgpack.encode(EngineSample(engine="old"))}, id="1-1")
    put_sample(connection, engine="new")
    found = operations.read_samples(connection, time.time() - operations.HISTORY_SECONDS)
    assert [sample.engine for _, sample in found] == ["new"]


# -- who may do what


def test_strangers_see_nothing_and_cancel_nothing(client, connection):
    for response in (client.get(reverse(PAGE)), client.get(reverse(DATA)), client.post(reverse(CANCEL), {"all": 1})):
        assert response.status_code == HTTPStatus.FOUND
        assert response.url.startswith("/admin/login/")


def test_those_who_may_look_may_not_cancel(staff, connection):
    assert "op-may-cancel" not in staff.get(reverse(PAGE)).text
    assert staff.post(reverse(CANCEL), {"all": 1}).status_code == HTTPStatus.FORBIDDEN


def test_those_who_may_cancel_are_told_how_many(staff, connection):
    User.objects.get(username="sam").user_permissions.add(Permission.objects.get(codename="change_engine"))
    assert "op-may-cancel" in staff.get(reverse(PAGE)).text
    page = staff.post(reverse(CANCEL), {"request": "gone"}, follow=True)
    assert "0 requests were cancelled." in page.text
    answer = staff.post(reverse(CANCEL), {"all": 1}, headers={"accept": "application/json"})
    assert answer.json() == {"message": "0 requests were cancelled."}


def test_an_order_without_a_request_cancels_nothing(admin_client, connection):
    answer = admin_client.post(reverse(CANCEL), headers={"accept": "application/json"})
    assert answer.json()["message"].startswith("request:")
    assert admin_client.get(reverse(CANCEL)).status_code == HTTPStatus.METHOD_NOT_ALLOWED


@pytest.mark.django_db(transaction=True)
async def test_the_live_page_follows_the_engines(connection):
    user = await sync_to_async(User.objects.create_superuser)("ada")
    live = communicator(user)
    connected, _ = await live.connect()
    assert connected
    assert "No engine is alive" in await part_of(live, "now")
    put(connection, engine_status())
    assert "engine-7" in await part_of(live, "now")
    await live.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_nobody_looks_once_the_last_viewer_is_gone(connection):
    others, feed = asyncio.all_tasks(), Feed()
    for _ in range(2):
        viewer = feed.join("en")
        async with asyncio.timeout(10):
            assert "Nothing runs or waits" in await viewer.take()
            feed.leave(viewer)
            await asyncio.gather(*asyncio.all_tasks() - others - {asyncio.current_task()})


@pytest.mark.django_db(transaction=True)
async def test_each_viewer_gets_the_language_of_its_page(connection):
    user = await sync_to_async(User.objects.create_superuser)("ada")
    pages = {"en": "Nothing runs or waits", "zh-hans": "没有正在运行或等待的请求", "../x": "Nothing runs or waits"}
    viewers = {language: communicator(user, f"?language={language}") for language in pages}
    for viewer in viewers.values():
        await viewer.connect()
    for language, viewer in viewers.items():
        assert pages[language] in await part_of(viewer, "now")
    for viewer in viewers.values():
        await viewer.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_the_last_hour_is_there_as_soon_as_redis_is(connection, settings):
    user = await sync_to_async(User.objects.create_superuser)("root")
    answering, away = settings.RWKV, dataclasses.replace(settings.RWKV, redis_url="unix:///nowhere/redis.sock")
    settings.RWKV = away
    live = communicator(user)
    await live.connect()
    assert "Redis does not answer" in await part_of(live, "now")
    settings.RWKV = answering
    assert "<svg" in await part_of(live, "charts")
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
