"""Which part of a load is measured: not while it grows, and not while it fades."""

from collections import Counter
from typing import Any

import pytest

from benchmarks.loadgen.metrics import summarise
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.phases import assign_phases
from benchmarks.loadgen.records import Chunk, Phase, RequestRecord


def by_the_clock(count: int, *, gap: float = 0.1, takes: float = 1.0, planned: bool = True) -> list[RequestRecord]:
    """Sent every `gap` seconds from 0 on; unless `planned`, all were due at 0 and waited for a slot."""
    return [
        RequestRecord(
            index=number,
            intended=number * gap if planned else 0.0,
            sent=number * gap,
            chunks=[Chunk(number * gap + takes, 1)],
            done=number * gap + takes,
            output_tokens=1,
        )
        for number in range(count)
    ]


def users(requests: int) -> list[RequestRecord]:
    """Three, who begin one second apart and each send so many requests, a second each."""
    return [
        RequestRecord(index=0, user=user, sent=start, chunks=[Chunk(start + 1, 1)], done=start + 1, output_tokens=1)
        for user in range(3)
        for start in (float(user + number) for number in range(requests))
    ]


def measured(records: list[RequestRecord], ramp_seconds: float = 0.0, **options: Any) -> tuple[Any, Counter[Phase]]:
    window = assign_phases(records, checked_profile(options), ramp_seconds)
    return window and pytest.approx(window), Counter(record.phase for record in records)


def test_an_open_loop_is_measured_until_its_last_send() -> None:
    records = by_the_clock(51)
    window, phases = measured(records, request_rate=10)
    assert window == (0.0, 5.0)
    assert phases == {Phase.MEASURE: 51}
    summary = summarise(records, window=(0.0, 5.0))
    assert summary["duration_s"] == pytest.approx(6.0)
    assert summary["request_throughput"]["measured"] == pytest.approx(41 / 5), "what came by then, without the drain"


def test_its_window_begins_where_warm_up_and_ramp_end() -> None:
    window, phases = measured(by_the_clock(51), request_rate=10, warmup_seconds=1.95)
    assert window == (1.95, 5.0)
    assert phases == {Phase.WARMUP: 20, Phase.MEASURE: 31}
    window, phases = measured(by_the_clock(51), ramp_seconds=3.0, request_rate=10, warmup_seconds=2)
    assert window == (3.0, 5.0)
    assert phases == {Phase.WARMUP: 20, Phase.RAMP: 10, Phase.MEASURE: 21}


def test_what_fades_is_not_in_it() -> None:
    window, phases = measured(by_the_clock(51), request_rate=10, cooldown_seconds=0.95)
    assert window == (0.0, 4.0)
    assert phases == {Phase.MEASURE: 41, Phase.DRAIN: 10}


def test_all_at_once_is_measured_to_the_last_arrival() -> None:
    records = by_the_clock(8, gap=0.0)
    window, phases = measured(records)
    assert (window, phases) == (None, {Phase.MEASURE: 8})
    assert summarise(records)["window"] == [0.0, 1.0]


def test_what_waits_for_a_slot_is_measured_by_its_send() -> None:
    """All was due at the start: only the sends tell when the load was on."""
    records = by_the_clock(51, planned=False)
    window, phases = measured(records, max_concurrency=10, warmup_seconds=2, cooldown_seconds=0.95)
    assert window == (2.0, 4.0)
    assert phases == {Phase.WARMUP: 20, Phase.MEASURE: 21, Phase.DRAIN: 10}


def test_users_are_measured_while_all_are_at_it() -> None:
    window, phases = measured(users(6), ramp_seconds=2.0, users=3)
    assert window == (2.0, 6.0)
    assert phases == {Phase.RAMP: 3, Phase.MEASURE: 14, Phase.DRAIN: 1}


def test_warm_up_and_cooldown_cut_the_window_of_users() -> None:
    window, phases = measured(users(6), ramp_seconds=2.0, users=3, warmup_seconds=3, cooldown_seconds=2.5)
    assert window == (3.0, 4.5)
    assert phases == {Phase.WARMUP: 6, Phase.MEASURE: 6, Phase.DRAIN: 6}


def test_a_request_for_each_user_leaves_everything_measured() -> None:
    window, phases = measured(users(1), ramp_seconds=3.0, users=3)
    assert (window, phases) == (None, {Phase.MEASURE: 3})
