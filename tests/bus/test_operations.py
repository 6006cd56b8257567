"""What engines leave for operators: samples of an hour, times to first token, and errors."""

import time

import pytest

from inference.bus import operations
from inference.bus.messages import EngineStatus, Generate, RowOutput
from inference.bus.server import EngineBus
from inference.bus.status import read_engines
from inference.first_tokens import FirstTokens
from tests.bus.test_bus import request, until_async


async def test_an_engine_samples_itself_and_says_how_long_rows_waited(start_worker, client, connection):
    start_worker(slots=4)
    call = await client.submit([request(0, 100_000, created=time.time())])
    await call.take()
    await until_async(lambda: read_engines(connection)[0].ttft_ms_p99 is not None)
    (engine,) = read_engines(connection)
    assert 0 <= engine.ttft_ms_p50 <= engine.ttft_ms_p99 < 60_000
    await until_async(lambda: operations.read_samples(connection, 0))
    moment, sample = operations.read_samples(connection, 0)[-1]
    assert (sample.engine, sample.slots) == (engine.engine, 4)
    assert abs(moment - time.time()) < 60


def test_an_engine_reports_the_first_line_of_an_error(redis_url, connection):
    bus = EngineBus(redis_url, status=lambda: EngineStatus, name="engine-7")
    bus.report(ValueError("no room\nfor the rest"))
    (error,) = operations.read_errors(connection)
    assert (error.where, error.message) == ("engine engine-7", "ValueError: no room")


def test_an_engine_without_redis_reports_nothing_and_goes_on():
    EngineBus("unix:///nowhere/redis.sock", status=lambda: EngineStatus).report(ValueError("x"))


def created(seconds_ago: float, row: int, **fields) -> Generate:
    return Generate(web="w", row=row, model="m", prompt=[1], max_tokens=9, created=time.time() - seconds_ago, **fields)


def test_times_to_first_token_are_those_of_first_tokens():
    times = FirstTokens()
    for row, seconds in enumerate((1.0, 2.0, 3.0)):
        times.expect(created(seconds, row))
    assert times.percentiles() == (None, None)
    times.see([("w", RowOutput(row, 0, [7])) for row in range(3)])
    times.see([("w", RowOutput(row, 1, [7])) for row in range(3)])  # later tokens
    p50, p99 = times.percentiles()
    assert p50 == pytest.approx(2000, abs=500)
    assert p99 == pytest.approx(2980, abs=500)


def test_rows_without_a_first_token_of_their_own_do_not_count():
    times = FirstTokens()
    times.expect(created(9.0, 1))
    times.expect(created(9.0, 2, generated=[5]))
    times.see([("w", RowOutput(1, 0, finish="cancelled")), ("w", RowOutput(2, 1, [7])), ("w", RowOutput(1, 0, [7]))])
    assert times.percentiles() == (None, None)
