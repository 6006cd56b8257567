"""What of a run's summary is repeated in columns of its row, and how figures are called where people read them."""

from collections.abc import Mapping
from typing import Any

from benchmarks.loadgen import figures

# Column of a run: figure of its summary.
COLUMNS = {
    "success_rate": "success_rate",
    "request_throughput": "request_throughput",
    "output_throughput": "output_throughput",
    "total_throughput": "total_token_throughput",
    "goodput": "goodput",
    "ttft_median": "ttft.median",
    "ttft_p99": "ttft.p99",
    "tpot_median": "tpot.median",
    "tpot_p99": "tpot.p99",
    "e2el_median": "e2el.median",
    "e2el_p99": "e2el.p99",
}
ALL_COLUMNS = (*COLUMNS, "duration", "requests", "failed")
TITLES = {
    "queue_delay": "Queue delay",
    "ttft": "TTFT",
    "ttft_sched": "TTFT from schedule",
    "ttfot": "TTFT without reasoning",
    "tpot": "TPOT",
    "itl": "ITL",
    "icl": "Chunk gap",
    "e2el": "E2EL",
    "e2el_sched": "E2EL from schedule",
    "close_time": "Close time",
    "decode_tps_user": "Decode speed of a user",
    "e2e_tps_user": "Speed of a user end to end",
    "prefill_tps": "Prefill speed",
    "request_throughput": "Request throughput",
    "output_throughput": "Output throughput",
    "input_throughput": "Input throughput",
    "total_token_throughput": "Total token throughput",
    "peak_output_throughput": "Peak output throughput",
    "success_rate": "Success rate",
    "goodput": "Goodput",
    "goodput_rate": "Goodput rate",
}


def columns(summary: Mapping[str, Any]) -> dict[str, float | None]:
    counts = summary.get("requests") or {}
    found = {column: figures.value(summary, name) for column, name in COLUMNS.items()}
    return {
        **found,
        "duration": summary.get("duration_s"),
        "requests": counts.get("total"),
        "failed": counts.get("failed"),
    }


def title(name: str) -> str:
    """ "TTFT, median (ms)" for "ttft.median". Raises ValueError for a name that no summary has."""
    one = figures.figure(name)
    words = f"{TITLES[one.metric]}, {one.statistic}" if one.statistic else TITLES[one.metric]
    return f"{words} ({one.unit})"
