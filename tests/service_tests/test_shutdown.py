"""SIGTERM: to `serve` while streams run, and to an engine in which nothing can run."""

import asyncio
import gc
import signal
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from pathlib import Path

import aiohttp
import pytest

from inference import supervisor, worker
from inference.bus.messages import Generate, History
from inference.engine.state_cache import Loaded, SavedState, StateCache
from sessions import keeper, levels
from tests.engine.counting_backend import CountingBackend
from tests.service import Service, descendants, is_running
from tests.service_tests.clients import ENDLESS, Client, started


@pytest.fixture
def service(tmp_path: Path, tiny_checkpoint: Path) -> Iterator[Service]:
    with started(tmp_path, MODEL=str(tiny_checkpoint), SERVE_CELERY="true") as service:
        yield service


async def test_a_short_stream_completes_a_long_one_is_cut_and_no_process_stays(service: Service, client: Client):
    family = descendants(service.process.pid)
    async with client.stream("Is nearly done", 60) as short, client.stream("Is not", ENDLESS) as long:
        await asyncio.gather(short.read(5), long.read(5))
        stopping = asyncio.create_task(asyncio.to_thread(service.stop, signal.SIGTERM))
        await short.read_to_end()
        assert short.done
        assert short.finish_reason == "length"
        with pytest.raises(aiohttp.ClientPayloadError):
            await long.read_to_end()
        assert await stopping == 0
    assert not any(map(is_running, family))


class NeverLoads:
    """A durable store that is away for good. Counts how often a row asks it."""

    def __init__(self) -> None:
        self.asked = 0

    def load(self, history: History, cached: Collection[bytes]) -> Future[Loaded]:
        store = self

        class Unanswered(Future[Loaded]):
            def done(self) -> bool:
                store.asked += 1
                return False

        return Unanswered()

    def save(self, saved: SavedState) -> None:
        raise AssertionError("no state was made")


@pytest.fixture
def gc_thresholds() -> Iterator[None]:
    """The engine sets its own."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("gc_thresholds")
def test_an_engine_in_which_no_row_can_move_waits_for_its_end_in_peace(redis_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "DRAIN_SECONDS", 0.3)
    store = NeverLoads()
    process = worker.Worker(redis_url)
    backend = CountingBackend(2)
    process.use(backend, step_tokens=64, states=StateCache(backend, durable=store))
    history = History(digest=b"of a session", tokens=5, session=1, turn=1)
    assert process.engine
    process.engine.submit(Generate(web="w", row=0, model="counting", prompt=[1], max_tokens=1, history=history))
    process.stop()
    process.run()
    assert 0 < store.asked <= 0.3 / worker.STALL_SECONDS + 2


def test_what_stopping_takes_at_most_is_less_than_the_supervisor_allows():
    engine = worker.DRAIN_SECONDS + worker.SIGN_OFF_SECONDS
    states = levels.FLUSH_SECONDS + keeper.RETRY_SECONDS + levels.PREFIX_FLUSH_SECONDS
    assert engine + states <= supervisor.STOP_SECONDS - 10
