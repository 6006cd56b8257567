"""The figures, by hand from made-up records."""

import json
from statistics import mean, median, stdev
from typing import Any

import pytest

from benchmarks.loadgen.distribution import describe
from benchmarks.loadgen.metrics import summarise, time_buckets, values_of
from benchmarks.loadgen.records import Chunk, ErrorClass, Phase, RequestRecord, TokenSource
from benchmarks.loadgen.sends import achieved_send_ratio, send_rate
from benchmarks.loadgen.windows import closed_loop_window


def record(
    sent: float = 0.0, *chunks: tuple[float, int | None], done: float | None = None, **fields: Any
) -> RequestRecord:
    """A request that went well unless `fields` say otherwise; its tokens are those of its chunks."""
    made = [Chunk(at, tokens) for at, tokens in chunks]
    fields.setdefault("output_tokens", sum(tokens or 0 for _, tokens in chunks))
    end = made[-1].time if made and done is None else done
    return RequestRecord(index=0, sent=sent, chunks=made, done=end, prompt_tokens=10, **fields)


def times(one: RequestRecord) -> dict[str, list[float]]:
    return values_of(one)["latency_ms"]


# --- one request


def test_the_times_of_a_request() -> None:
    got = values_of(record(1.0, (1.5, 2), (1.8, 3), (2.0, 1), done=2.25, intended=0.75))
    assert got["latency_ms"] == {
        "queue_delay": [250.0],
        "ttft": [500.0],
        "ttft_sched": [750.0],
        "ttfot": [500.0],
        "tpot": [pytest.approx(125.0)],  # (2.0 - 1.5) s over the four tokens behind the first chunk
        "itl": pytest.approx([100.0, 100.0, 100.0, 200.0]),
        "icl": pytest.approx([300.0, 200.0]),
        "e2el": [1000.0],
        "e2el_sched": [1250.0],
        "close_time": [250.0],
    }
    assert got["speed"] == {
        "decode_tps_user": [pytest.approx(8.0)],
        "e2e_tps_user": [6.0],
        "prefill_tps": [20.0],
    }


def test_cached_tokens_are_not_prefilled() -> None:
    assert values_of(record(0.0, (0.5, 1), cached_tokens=8))["speed"]["prefill_tps"] == [4.0]


def test_tokens_that_the_server_did_not_count_are_shared_out() -> None:
    one = record(0.0, (1.0, None), (1.4, None), (1.8, None), output_tokens=6)
    assert times(one)["tpot"] == [pytest.approx(160.0)], "k of the first chunk is taken as 1: 800 ms over 5"
    assert times(one)["itl"] == pytest.approx([200.0] * 4), "two tokens in each chunk"
    assert times(one)["icl"] == pytest.approx([400.0] * 2)
    assert summarise([one])["chunk_estimated"] is True
    assert summarise([record(0.0, (1.0, 1))])["chunk_estimated"] is False


def test_a_chunk_without_a_token_of_its_own_makes_the_next_one_wait_longer() -> None:
    assert times(record(0.0, (1.0, 1), (1.1, 0), (1.3, 1)))["itl"] == [pytest.approx(300.0)]


@pytest.mark.parametrize(
    "one",
    [
        record(0.0, (1.0, 1)),
        record(0.0, (1.0, 4)),
        record(0.0, (1.0, None), output_tokens=4),
        record(0.0, (1.0, 2), (1.0, 0), output_tokens=2),
    ],
)
def test_no_tpot_without_a_token_behind_the_first_chunk(one: RequestRecord) -> None:
    assert times(one)["tpot"] == []
    assert times(one)["ttft"] == [1000.0]


def test_an_answer_that_was_not_streamed() -> None:
    got = times(record(1.0, done=3.0, output_tokens=5))
    assert got["e2el"] == [2000.0]
    assert not any(got[name] for name in ("ttft", "ttft_sched", "ttfot", "tpot", "itl", "icl", "close_time"))
    assert time_buckets([record(1.0, done=3.0, output_tokens=5)])[-1]["tokens"] == 5


def test_the_first_token_that_is_no_reasoning() -> None:
    one = record(0.0, (1.0, 1), (2.0, 1))
    one.chunks[0] = Chunk(1.0, 1, reasoning=True)
    assert (times(one)["ttft"], times(one)["ttfot"]) == ([1000.0], [2000.0])
    one.chunks.pop()
    assert times(one)["ttfot"] == []


def test_gaps_are_within_one_choice_of_a_batch() -> None:
    one = record(0.0, done=2.0, output_tokens=4)
    one.chunks = [Chunk(1.0, 1), Chunk(1.5, 1, choice=1), Chunk(1.6, 1), Chunk(1.9, 1, choice=1)]
    assert times(one)["icl"] == pytest.approx([600.0, 400.0])
    assert times(one)["tpot"] == [pytest.approx(500.0)], "1 s of decoding for two tokens"


# --- statistics


def test_statistics_of_a_sample() -> None:
    sample = [float(value * value % 997) for value in range(1000)]
    got = describe(sample)
    assert (got["count"], got["min"], got["max"]) == (1000, min(sample), max(sample))
    assert got["mean"] == pytest.approx(mean(sample)) and got["std"] == pytest.approx(stdev(sample))
    assert got["median"] == got["p50"] == median(sample)
    assert describe([0.0, 10.0])["median"] == 5.0
    ordered = sorted(sample)
    assert got["p99"] == pytest.approx(ordered[989] + 0.01 * (ordered[990] - ordered[989]))


@pytest.mark.parametrize(("name", "least"), [("p50", 20), ("p75", 40), ("p90", 100), ("p95", 200), ("p99", 1000)])
def test_a_percentile_needs_ten_samples_beyond_it(name: str, least: int) -> None:
    assert describe([1.0] * least)[name] == 1.0
    assert describe([1.0] * (least - 1))[name] is None


def test_statistics_of_next_to_nothing() -> None:
    assert set(describe([]).values()) == {0, None}
    assert (describe([3.0])["median"], describe([3.0])["std"]) == (3.0, None)


# --- the run


def test_the_summary_of_nothing_is_json() -> None:
    def check(summary: dict[str, Any]) -> None:
        json.dumps(summary, allow_nan=False)

    check(summarise([]))
    check(summarise([RequestRecord(index=0)], slos={"ttft": 1.0}))
    check(summarise([record(1.0, done=1.0, error=ErrorClass.CONNECT, output_tokens=None)], slos={"ttft": 1.0}))
    assert summarise([])["success_rate"] is None and time_buckets([]) == []


def test_which_requests_count() -> None:
    got = summarise(
        [
            record(0.0, (9.0, 1), phase=Phase.WARMUP),
            record(1.0, (2.0, 1), phase=Phase.RAMP),
            record(2.0, (2.5, 1), (3.0, 3), output_tokens_source=TokenSource.USAGE),
            record(3.0, (3.5, 1), done=4.0, error=ErrorClass.TIMEOUT_TOTAL),
            record(3.0, done=3.5, error=ErrorClass.CANCELLED, output_tokens=None),
            record(4.0, (5.0, 5), phase=Phase.DRAIN),
        ]
    )
    assert got["requests"] == {
        "total": 5,
        "completed": 3,
        "failed": 2,
        "cancelled": 1,
        "warmup": 1,
        "measured": 3,
    }
    assert got["success_rate"] == 0.6
    assert got["errors"] == {"timeout_total": 1, "cancelled": 1}
    assert got["duration_s"] == 4.0, "from the ramp's send to the last arrival"
    assert (got["window"], got["window_s"]) == ([2.0, 3.5], 1.5)
    assert got["latency_ms"]["ttft"]["count"] == 1, "successes of the measured phase alone"
    assert got["request_throughput"] == {"full": 3 / 4, "measured": 2 / 1.5}, "the ramp's ended at 2.0 s, in the window"
    assert got["output_throughput"]["full"] == 10 / 4
    assert got["output_throughput"]["measured"] == 6 / 1.5, "tokens by their arrival, whatever became of the request"
    assert got["input_throughput"] == {"full": 30 / 4, "measured": 30 / 1.5}
    assert got["total_token_throughput"] == {"full": 40 / 4, "measured": 36 / 1.5}
    assert got["peak_output_throughput"] == 5
    assert got["tokens"] == {"input": 30, "output": 10, "reasoning": 0, "cached": 0}
    assert got["output_token_sources"] == {"none": 2, "usage": 1}
    assert (got["output_length"]["mean"], got["input_length"]["count"]) == (4, 1)


def test_only_tokens_that_arrived_in_the_window_count_in_it() -> None:
    one = record(0.0, (1.0, 2), (2.0, 3), (3.0, 4), output_tokens=10)
    got = summarise([one], window=(1.5, 3.0))
    assert got["output_throughput"]["measured"] == pytest.approx(8 / 1.5), "the tenth came with the last chunk"
    assert got["input_throughput"]["measured"] == 0


def test_concurrency_is_exact() -> None:
    run = [record(0.0, (4.0, 1)), record(1.0, (2.0, 1)), record(2.0, (3.0, 1)), record(3.5, (4.0, 1), done=9.0)]
    got = summarise(run)["concurrency"]
    assert got == {"mean": pytest.approx((4 + 1 + 1 + 0.5) / 4), "max": 2}, "one ends in the instant another begins"
    assert summarise(run, window=(1.0, 2.0))["concurrency"]["mean"] == 2.0


def test_stalls_are_chunk_gaps_above_the_threshold() -> None:
    run = [record(0.0, (1.0, 1), (1.6, 1), (1.7, 1))]
    assert summarise(run)["stalls"] == {"threshold_ms": 500.0, "count": 1}
    assert summarise(run, stall_ms=50.0)["stalls"]["count"] == 2


def test_goodput() -> None:
    run = [
        record(0.0, (0.1, 1), (1.0, 1)),  # slow decoding
        record(0.0, (0.1, 1), (0.2, 1)),
        record(0.0, (0.1, 1)),  # one token has no TPOT, and passes
        record(0.0, (0.5, 1), (0.6, 1)),  # late
        record(0.0, done=0.2, output_tokens=3),  # no TTFT, and does not pass
        record(0.0, (0.1, 1), done=2.0, error=ErrorClass.STREAM_TRUNCATED),
    ]
    got = summarise(run, slos={"ttft": 200.0, "tpot": 150.0})["goodput"]
    assert got == {
        "slos": {"ttft": 200.0, "tpot": 150.0},
        "good": 2,
        "fraction": 2 / 6,
        "per_second": 2 / 1.0,
    }
    assert summarise(run)["goodput"] is None
    with pytest.raises(ValueError, match="slos: itl"):
        summarise(run, slos={"itl": 1.0})


def test_the_window_of_users() -> None:
    run = [
        record(0.0, (5.0, 1), user=0, phase=Phase.WARMUP),
        record(0.0, (1.0, 1), user=0),
        record(1.0, (3.0, 1), user=0),
        record(0.5, (2.0, 1), user=1),
        record(2.0, (4.0, 1), user=1),
    ]
    assert closed_loop_window(run) == (0.5, 3.0)
    assert closed_loop_window([*run, record(3.5, (4.0, 1), user=2)]) is None, "they were never all at it"
    assert closed_loop_window([record(0.0, (1.0, 1))]) is None


def test_the_seconds_of_a_run() -> None:
    run = [
        record(-0.5, (-0.25, 1), phase=Phase.WARMUP),
        record(0.5, (1.0, 2), (1.5, 1), (2.5, 1)),
        record(2.0, done=2.25, error=ErrorClass.CONNECT, output_tokens=None),
    ]
    keys = ("second", "sent", "done", "failed", "tokens", "in_flight", "ttft_p50_ms", "ttft_p99_ms")
    assert [tuple(bucket[key] for key in keys) for bucket in time_buckets(run)] == [
        (-1, 1, 1, 0, 1, 0.25, 250.0, 250.0),
        (0, 1, 0, 0, 0, 0.5, None, None),
        (1, 0, 0, 0, 3, 1.0, 500.0, 500.0),
        (2, 1, 1, 1, 1, 0.75, None, None),
    ]


def test_how_much_of_the_asked_rate_was_sent() -> None:
    late = [
        record(1.0, (9.0, 1), intended=1.0),
        record(2.0, (9.0, 1), intended=2.0),
        record(6.0, (9.0, 1), intended=5.0),
    ]
    assert achieved_send_ratio(late) == 0.8
    assert summarise(late)["send_rate"] == {"offered": 2 / 4, "achieved": 2 / 5}
    even = [record(n / 20, (9.0, 1), intended=n / 20) for n in range(1, 31)]
    assert send_rate(even) == {"offered": pytest.approx(20), "achieved": pytest.approx(20)}
    assert send_rate([record(1.0, (2.0, 1))]) == {"offered": None, "achieved": None}
    assert achieved_send_ratio([record(1.0, (2.0, 1))]) is None
    assert achieved_send_ratio([record(1.0, (2.0, 1), intended=0.0)]) is None
