"""What a server says of itself during a load: read from its /metrics, drawn beside the requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest

from benchmarks.loadgen import exports, runner, server_chart, server_samples
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.records import ServerSample
from benchmarks.loadgen.target import Target, make_target
from tests.loadgen.sample_runs import small_run
from tests.service import Service, wait_until

SECONDS = 60.0  # the longest wait for something that takes a moment on an idle machine
OURS = {
    'rwkv_engine_running{engine="a"}': 3.0,
    'rwkv_engine_running{engine="b"}': 4.0,
    'rwkv_engine_waiting{engine="a"}': 1.0,
    'rwkv_engine_generated_tokens_per_second{engine="a"}': 50.0,
    "rwkv_engine_running_for_ever": 9.0,
}
COUNTER = 'vllm:generation_tokens_total{model_name="m"}'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_samples, "SAMPLE_SECONDS", 0.01)


@contextmanager
def serving(tell: Callable[[int], dict[str, float] | None]) -> Iterator[tuple[Target, list[str]]]:
    """A server whose /metrics are `tell(how often it was asked before)`, 503 for None; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = tell(len(asked))
            asked.append(self.path)
            page = "".join(f"{name} {value}\n" for name, value in (told or {}).items()).encode()
            self.send_response(200 if told else 503)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield make_target(checked_profile({"base_url": [url]}), run_id="0", synthetic=True), asked
        server.shutdown()


def sampled(tell: Callable[[int], dict[str, float] | None], count: int, before: dict[str, float]) -> list[ServerSample]:
    """The samples until there are so many."""
    with serving(tell) as (target, _), server_samples.sampled(target, before) as samples:
        wait_until(lambda: len(samples) >= count, SECONDS, f"there are {count} samples")
    return samples


def test_the_engines_of_a_service_are_added_up() -> None:
    samples = sampled(lambda _: OURS, 3, OURS)
    assert {(one.running, one.waiting, one.tokens_per_second) for one in samples} == {(7.0, 1.0, 50.0)}
    times = [one.time for one in samples]
    assert times == sorted(times)


def test_the_rate_of_a_server_that_only_counts_is_the_difference() -> None:
    before, *samples = sampled(lambda number: {COUNTER: 100.0 + 10 * number}, 4, {COUNTER: 90.0})
    assert (before.tokens_per_second, before.running, before.waiting) == (None, None, None)
    for one in samples:
        assert one.tokens_per_second is not None
        assert one.tokens_per_second * (one.time - before.time) == pytest.approx(10)
        before = one


def test_a_page_that_does_not_come_leaves_a_gap() -> None:
    samples = sampled(lambda number: None if number % 2 else {COUNTER: 100.0 + 10 * number}, 3, {COUNTER: 90.0})
    first, second = samples[1:3]
    assert second.tokens_per_second == pytest.approx(20 / (second.time - first.time))


def test_a_server_that_tells_nothing_of_itself_is_not_asked() -> None:
    with serving(lambda _: {"up": 1.0}) as (target, asked), server_samples.sampled(target, {"up": 1.0}) as samples:
        pass
    assert (samples, asked) == ([], [])


def test_the_report_draws_what_the_server_told() -> None:
    run = small_run()
    assert "own figures" not in exports.export(run, "html").decode()
    run.server_samples = [ServerSample(0.0, 2.0, 1.0, None), ServerSample(1.0, 3.0, 0.0, 40.0)]
    assert 'aria-label="The server&#x27;s own figures"' in exports.export(run, "html").decode()
    only_rows = [msgspec.structs.replace(one, tokens_per_second=None) for one in run.server_samples]
    [drawn] = server_chart.figures(only_rows, [])
    assert "waiting" in drawn and "tokens/s</" not in drawn
    assert server_chart.figures([ServerSample(0.0, None, None, None)], []) == []


def test_our_service_tells_of_its_rows(service: Service) -> None:
    values = {"num_prompts": 4, "random_input_len": 8, "random_output_len": 16, "workers": 1, "base_url": [service.url]}
    result = runner.run(checked_profile(values), kind="serve")
    assert result.summary["requests"]["completed"] == 4
    assert result.server_samples and result.server_samples[0].time < result.duration
    assert all(None not in (one.running, one.waiting, one.tokens_per_second) for one in result.server_samples)
