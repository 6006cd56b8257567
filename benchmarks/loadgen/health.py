"""Whether the generator kept up with what it was asked to do: a slow client must not pass for a slow server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from math import floor
from typing import NamedTuple

from benchmarks.loadgen.distribution import percentile
from benchmarks.loadgen.records import ClientHealth

OK, WARN, CLIENT_LIMITED = "ok", "warn", "client-limited"


class Limit(NamedTuple):
    """Beyond `warn` the client shows in the figures; beyond `limited` they tell of it, or the load was another."""

    warn: float
    limited: float


SEND_LAG_MS = Limit(2.0, 10.0)
LOOP_LAG_MS = Limit(2.0, 10.0)
CPU_PERCENT = Limit(75.0, 90.0)
ACHIEVED_SENDS = 0.99

SAMPLE_SECONDS = 0.01


def client_health(
    *,
    send_lags: Sequence[float],
    loop_lags: Sequence[float],
    achieved_send_ratio: float | None,
    cpu_percents: Sequence[float],
) -> ClientHealth:
    """The verdict over all workers of a run, "ok", "warn" or "client-limited", and why it is not "ok".

    send_lags: seconds from the moment a request might be sent (its time in the schedule, or the free slot that it
    waited for) to its send. loop_lags: all samples of all workers' `sample_loop_lag`, in seconds.
    achieved_send_ratio: `sends.achieved_send_ratio`, or None where the load bounds its own concurrency.
    cpu_percents: each worker's CPU time in percent of the run's length (100 is one core).
    """
    send_lag, loop_lag = _p99_ms(send_lags), _p99_ms(loop_lags)
    cpu = max(cpu_percents, default=None)
    verdicts, reasons = [OK], []
    for value, limit, words in (
        (send_lag, SEND_LAG_MS, "1 request in 100 was sent {:.1f} ms late or later (limit {:g} ms)"),
        (loop_lag, LOOP_LAG_MS, "a worker's event loop was {:.1f} ms late at p99 (limit {:g} ms)"),
        (cpu, CPU_PERCENT, "a worker used {:.0f}% of its core (limit {:g}%)"),
    ):
        if value is not None and value > limit.warn:
            verdicts.append(CLIENT_LIMITED if value > limit.limited else WARN)
            reasons.append(words.format(value, limit.limited if value > limit.limited else limit.warn))
    if achieved_send_ratio is not None and achieved_send_ratio < ACHIEVED_SENDS:
        verdicts.append(CLIENT_LIMITED)
        sent = floor(1000 * achieved_send_ratio) / 1000  # 98.96% must not be read as the limit itself
        reasons.append(f"only {sent:.1%} of the asked rate was sent (limit {ACHIEVED_SENDS:.0%})")
    return ClientHealth(
        verdict=max(verdicts, key=(OK, WARN, CLIENT_LIMITED).index),
        reasons=reasons,
        send_lag_p99_ms=send_lag,
        loop_lag_p99_ms=loop_lag,
        achieved_send_ratio=achieved_send_ratio,
        cpu_percent_max=cpu,
    )


@asynccontextmanager
async def sample_loop_lag(lags: list[float]) -> AsyncIterator[None]:
    """While inside, append to `lags` every 10 ms how late (in seconds) the event loop woke its timer."""
    sampler = asyncio.create_task(_sample(lags))
    try:
        yield
    finally:
        sampler.cancel()
        with suppress(asyncio.CancelledError):
            await sampler


async def _sample(lags: list[float]) -> None:
    now = asyncio.get_running_loop().time
    while True:
        due = now() + SAMPLE_SECONDS
        await asyncio.sleep(SAMPLE_SECONDS)
        lags.append(max(0.0, now() - due))


def _p99_ms(seconds: Sequence[float]) -> float | None:
    return 1000 * percentile(sorted(seconds), 990) if seconds else None
