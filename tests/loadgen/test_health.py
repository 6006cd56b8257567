"""Whether the generator kept up, and what it says when it did not."""

import asyncio
import time
from typing import Any

import pytest

from benchmarks.loadgen.health import client_health, sample_loop_lag


def test_a_client_that_kept_up() -> None:
    health = client_health(send_lags=[0.001], loop_lags=[0.002], achieved_send_ratio=1.0, cpu_percents=[50.0, 60.0])
    assert (health.verdict, health.reasons) == ("ok", [])
    assert (health.send_lag_p99_ms, health.loop_lag_p99_ms, health.cpu_percent_max) == (1.0, 2.0, 60.0)
    nothing = client_health(send_lags=[], loop_lags=[], achieved_send_ratio=None, cpu_percents=[])
    assert (nothing.verdict, nothing.send_lag_p99_ms, nothing.cpu_percent_max) == ("ok", None, None)


@pytest.mark.parametrize(
    ("field", "value", "verdict", "reason"),
    [
        ("send_lags", [0.03], "client-limited", "sent 30.0 ms late or later (limit 10 ms)"),
        ("loop_lags", [0.02], "client-limited", "event loop was 20.0 ms late at p99 (limit 10 ms)"),
        ("achieved_send_ratio", 0.98, "client-limited", "98.0% of the asked rate"),
        ("achieved_send_ratio", 0.9896, "client-limited", "98.9% of the asked rate"),
        ("cpu_percents", [10.0, 97.0], "client-limited", "97% of its core (limit 90%)"),
        ("send_lags", [0.003], "warn", "sent 3.0 ms late or later (limit 2 ms)"),
        ("loop_lags", [0.009], "warn", "event loop was 9.0 ms late at p99 (limit 2 ms)"),
        ("cpu_percents", [10.0, 80.0], "warn", "80% of its core (limit 75%)"),
    ],
)
def test_a_client_that_did_not(field: str, value: Any, verdict: str, reason: str) -> None:
    measured = {"send_lags": [], "loop_lags": [], "achieved_send_ratio": None, "cpu_percents": [], field: value}
    health = client_health(**measured)
    assert health.verdict == verdict
    assert len(health.reasons) == 1 and reason in health.reasons[0]


def test_the_worst_of_a_client_is_its_verdict_and_all_of_it_is_told() -> None:
    health = client_health(send_lags=[0.03], loop_lags=[0.003], achieved_send_ratio=1.0, cpu_percents=[80.0])
    assert health.verdict == "client-limited"
    assert len(health.reasons) == 3


async def test_a_loop_that_is_held_up_is_seen() -> None:
    lags: list[float] = []
    async with sample_loop_lag(lags):
        await asyncio.sleep(0.03)
        time.sleep(0.2)  # what no code in an event loop should do
        await asyncio.sleep(0.03)
    assert max(lags) > 0.15 and len(lags) >= 3
    count = len(lags)
    await asyncio.sleep(0.03)
    assert len(lags) == count, "it ended"
