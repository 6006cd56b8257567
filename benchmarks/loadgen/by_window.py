"""The figures of a summary that depend on which time counts, in the measured window and in the whole run.

The whole run leaves out the warm-up alone; the measured window leaves out ramp and drain as well (see `metrics`).
Wherever there is one number, it is the measured window's; vLLM's and api_bench_tools' formats have the whole run's.
"""

from collections.abc import Mapping
from typing import Any

MEASURED, WHOLE = "measured window", "whole run"
THROUGHPUTS = {
    "request_throughput": "Requests/s",
    "output_throughput": "Output tokens/s",
    "input_throughput": "Prompt tokens/s",
    "total_token_throughput": "All tokens/s",
}

Row = tuple[str, float | None, float | None]


def rows(summary: Mapping[str, Any]) -> list[Row]:
    """(name with its unit, in the measured window, in the whole run); None where it is not of that one."""
    counts, concurrency = summary.get("requests") or {}, summary.get("concurrency") or {}
    goodput, stalls = summary.get("goodput") or {}, summary.get("stalls") or {}
    found: list[Row] = [
        ("Length, s", summary.get("window_s"), summary.get("duration_s")),
        ("Requests", counts.get("measured"), counts.get("total")),
        *((words, *_both(summary, name)) for name, words in THROUGHPUTS.items()),
        ("Peak output tokens/s", None, summary.get("peak_output_throughput")),
        ("Requests in flight, mean", concurrency.get("mean"), None),
        ("Requests in flight, most", concurrency.get("max"), None),
        ("Goodput, requests/s", goodput.get("per_second"), None),
        (f"Stalls: gaps over {stalls.get('threshold_ms') or 0:g} ms", stalls.get("count"), None),
    ]
    return [row for row in found if row[1:] != (None, None)]


def window_of(summary: Mapping[str, Any], name: str) -> str:
    """Which of the two the one number of a throughput is of."""
    return WHOLE if _both(summary, name)[0] is None else MEASURED


def _both(summary: Mapping[str, Any], name: str) -> tuple[float | None, float | None]:
    found = summary.get(name) or {}
    return found.get("measured"), found.get("full")
