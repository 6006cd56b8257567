"""What the generator itself costs: events per second of CPU time, and how much later than written it sees them.

The load goes through the same capture as any other, against a server of our own that paces its streams and says in
each event when it was written. Server and client share this machine, and its cores.
"""

import asyncio
import gc
import os
import platform
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec

from benchmarks.loadgen.capture import Timeouts, exchange, open_session
from benchmarks.loadgen.distribution import describe
from benchmarks.loadgen.events import DONE, read_events
from benchmarks.loadgen.exchange import Exchange
from benchmarks.loadgen.health import client_health, sample_loop_lag
from benchmarks.loadgen.paced_server import running_paced_server

STREAMS = (64, 256, 1000)
INTERVAL_SECONDS = 0.02  # 50 events a second from each stream
SAMPLE_SECONDS = 0.05
MS = 1000.0


class Stamp(msgspec.Struct):
    """What an event of the paced server says of itself; a time of `time.monotonic`."""

    written: float


class Sample(msgspec.Struct):
    """Where the client stood at one moment: its CPU seconds, and how many loop lags it had taken down."""

    time: float
    cpu: float
    lags: int


class Share(msgspec.Struct):
    """What one worker saw while all of its streams ran."""

    seconds: float
    cpu_seconds: float
    latencies: list[float]  # seconds from each event's writing to its capture
    loop_lags: list[float]
    failed: int


def measure(
    streams: Sequence[int] = STREAMS,
    *,
    seconds: float = 5.0,
    interval: float = INTERVAL_SECONDS,
    workers: int = 1,
) -> dict[str, Any]:
    """Run each number of concurrent streams for about `seconds`, shared out among `workers` processes.

    Returns {cores, python, interval_s, workers, cases: [...]} with one case per number of streams:
      streams                 asked for
      failed                  of them
      events                  captured while all streams of a worker ran
      events_per_second       asked of the server: streams / interval; seen: what came, and if that is much less, the
                              machine had not enough CPU for both sides, and the case tells of it rather than of us
      events_per_core_second  events / CPU seconds of the clients; None if none were used
      cpu_percent             of the busiest worker, 100 being one core
      added_latency_ms        distribution of capture - writing (see `distribution.describe`)
      loop_lag_p99_ms, verdict, reasons   as in a run's client health
    """
    with running_paced_server() as url:
        cases = [_measure_one(url, count, seconds, interval, workers) for count in streams]
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "interval_s": interval,
        "workers": workers,
        "cases": cases,
    }


def _measure_one(url: str, streams: int, seconds: float, interval: float, workers: int) -> dict[str, Any]:
    counts = [streams // workers + (worker < streams % workers) for worker in range(workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(_work, url, count, seconds, interval) for count in counts if count]
        shares = [future.result() for future in running]
    events = sum(len(share.latencies) for share in shares)
    cpu = sum(share.cpu_seconds for share in shares)
    health = client_health(
        send_lags=[],
        loop_lags=[lag for share in shares for lag in share.loop_lags],
        achieved_send_ratio=None,
        cpu_percents=[100 * share.cpu_seconds / share.seconds for share in shares if share.seconds],
    )
    return {
        "streams": streams,
        "failed": sum(share.failed for share in shares),
        "events": events,
        "events_per_second": {
            "asked": streams / interval,
            "seen": sum(len(share.latencies) / share.seconds for share in shares if share.seconds),
        },
        "events_per_core_second": events / cpu if cpu else None,
        "cpu_percent": health.cpu_percent_max,
        "added_latency_ms": describe(MS * latency for share in shares for latency in share.latencies),
        "loop_lag_p99_ms": health.loop_lag_p99_ms,
        "verdict": health.verdict,
        "reasons": health.reasons,
    }


def _work(url: str, streams: int, seconds: float, interval: float) -> Share:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(_load(url, streams, seconds, interval))


async def _load(url: str, streams: int, seconds: float, interval: float) -> Share:
    body = msgspec.json.encode({"events": round(seconds / interval), "interval": interval})
    lags: list[float] = []
    samples: list[Sample] = []
    gc.collect()
    gc.disable()  # as the workers of a run do
    async with open_session() as session, sample_loop_lag(lags):
        sampler = asyncio.create_task(_sample(samples, lags))
        sends = [exchange(session, url, {}, body, time.monotonic, Timeouts()) for _ in range(streams)]
        exchanges = await asyncio.gather(*sends)
        sampler.cancel()
    gc.enable()
    return _share(exchanges, samples, lags)


async def _sample(samples: list[Sample], lags: list[float]) -> None:
    while True:
        samples.append(Sample(time.monotonic(), time.process_time(), len(lags)))
        await asyncio.sleep(SAMPLE_SECONDS)


def _share(exchanges: Sequence[Exchange], samples: Sequence[Sample], lags: Sequence[float]) -> Share:
    """Connecting is left out: it counts from where the last stream had begun to where the first one ended."""
    went_well = [one for one in exchanges if not one.error and one.pieces and one.done is not None]
    failed = len(exchanges) - len(went_well)
    begun = max((one.pieces[0][0] for one in went_well), default=0.0)
    ended = min((one.done for one in went_well if one.done is not None), default=0.0)
    inside = [sample for sample in samples if begun <= sample.time <= ended]
    if len(inside) < 2:
        return Share(0.0, 0.0, [], [], failed)
    first, last = inside[0], inside[-1]
    decode = msgspec.json.Decoder(Stamp).decode
    latencies = [
        event.time - decode(event.data).written
        for one in went_well
        for event in read_events(one)
        if first.time <= event.time <= last.time and event.data != DONE
    ]
    return Share(last.time - first.time, last.cpu - first.cpu, latencies, list(lags[first.lags : last.lags]), failed)
