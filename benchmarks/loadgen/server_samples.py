"""What a server says of itself while it is loaded, once a second: rows that run and wait, and new tokens.

The first server's /metrics are read by a thread of the supervisor, beside the load. A name is taken with all of its
labels, summed: the engines of a service count together.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from benchmarks.loadgen import probe
from benchmarks.loadgen.records import ServerSample
from benchmarks.loadgen.target import Target

SAMPLE_SECONDS = 1.0

# As several servers call them: ours, vLLM, SGLang, Text Generation Inference, llama.cpp.
RUNNING = (
    "rwkv_engine_running",
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "tgi_batch_current_size",
    "llamacpp:requests_processing",
)
WAITING = (
    "rwkv_engine_waiting",
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "tgi_queue_size",
    "llamacpp:requests_deferred",
)
TOKENS_PER_SECOND = ("rwkv_engine_generated_tokens_per_second", "sglang:gen_throughput")
TOKENS = ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total")  # since the server's start


@contextmanager
def sampled(target: Target, metrics: Mapping[str, float]) -> Iterator[list[ServerSample]]:
    """A list that grows for the length of the block. `metrics` are what the server told before.

    It stays empty for a server that has none of the figures. Times are of `time.monotonic`.
    """
    samples: list[ServerSample] = []
    if all(_sum(metrics, names) is None for names in (RUNNING, WAITING, TOKENS_PER_SECOND, TOKENS)):
        yield samples
        return
    loop = asyncio.new_event_loop()
    sampling = loop.create_task(_sample(target, samples))
    thread = threading.Thread(target=_run, args=(loop, sampling), name="samples of the server")
    thread.start()
    try:
        yield samples
    finally:
        loop.call_soon_threadsafe(sampling.cancel)
        thread.join()
        loop.close()


def since(samples: list[ServerSample], epoch: float) -> list[ServerSample]:
    """With times in seconds since the run's start, as all others of a result."""
    return [msgspec.structs.replace(sample, time=sample.time - epoch) for sample in samples]


def _run(loop: asyncio.AbstractEventLoop, sampling: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(sampling)


async def _sample(target: Target, samples: list[ServerSample]) -> None:
    """A page that does not come leaves a gap."""
    due, before = time.monotonic(), None
    async with probe.open_pages(target) as session:
        while True:
            metrics = await probe.metrics(session, target)
            now = time.monotonic()
            if metrics is not None:
                samples.append(_read(now, metrics, before))
                before = now, _sum(metrics, TOKENS)
            due = max(due + SAMPLE_SECONDS, now)
            await asyncio.sleep(due - now)


def _read(now: float, metrics: Mapping[str, float], before: tuple[float, float | None] | None) -> ServerSample:
    """`before`: time and tokens of the sample ahead of this one, for a server that only counts."""
    rate, tokens = _sum(metrics, TOKENS_PER_SECOND), _sum(metrics, TOKENS)
    if rate is None and tokens is not None and before is not None and before[1] is not None:
        rate = max(0.0, tokens - before[1]) / (now - before[0])  # a server that was started anew counts from 0
    return ServerSample(now, _sum(metrics, RUNNING), _sum(metrics, WAITING), rate)


def _sum(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """Of the first of the names that is there at all."""
    for name in names:
        found = [value for key, value in metrics.items() if key.partition("{")[0] == name]
        if found:
            return sum(found)
    return None
