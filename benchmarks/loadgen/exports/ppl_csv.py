"""The CSV of api_bench_tools: one line with its columns, in its units (ms, requests and tokens per second)."""

import csv
from io import StringIO
from typing import Any

from benchmarks.loadgen.exports import latencies
from benchmarks.loadgen.records import RunResult

STATISTICS = ("min", "max", "mean", "median", "std", "p90", "p99")
LATENCIES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el", "itl": "itl"}  # the column's name: ours
COUNTS = (
    "completed",
    "success_rate",
    "qps",
    "total_inlen",
    "total_outlen",
    "avg_inlen",
    "avg_outlen",
    "max_inlen",
    "max_outlen",
    "o_tps",
    "io_tps",
)
COLUMNS = (*COUNTS, *(f"{statistic}_{name}" for name in LATENCIES for statistic in STATISTICS))


def write(result: RunResult) -> bytes:
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerow(to_row(result))
    return out.getvalue().encode()


def to_row(result: RunResult) -> dict[str, Any]:
    """Lengths are of completed requests; rates are over the whole run, ramp and drain included."""
    summary = result.summary
    requests, tokens = summary.get("requests") or {}, summary.get("tokens") or {}
    completed = requests.get("completed")
    done = [record for record in latencies.counted(result) if record.succeeded]
    given = [record.prompt_tokens for record in done if record.prompt_tokens is not None]
    made = [record.output_tokens for record in done if record.output_tokens is not None]
    inputs, outputs = summary.get("input_length") or {}, summary.get("output_length") or {}
    row: dict[str, Any] = {
        "completed": completed,
        "success_rate": summary.get("success_rate"),
        "qps": (summary.get("request_throughput") or {}).get("full"),
        "total_inlen": tokens.get("input"),
        "total_outlen": tokens.get("output"),
        "avg_inlen": sum(given) / len(given) if given else inputs.get("mean"),
        "avg_outlen": sum(made) / len(made) if made else outputs.get("mean"),
        "max_inlen": max(given, default=inputs.get("max")),
        "max_outlen": max(made, default=outputs.get("max")),
        "o_tps": (summary.get("output_throughput") or {}).get("full"),
        "io_tps": (summary.get("total_token_throughput") or {}).get("full"),
    }
    found = latencies.statistics(result, (90.0, 99.0))
    for name, ours in LATENCIES.items():
        row |= {f"{statistic}_{name}": found[ours][statistic] for statistic in STATISTICS}
    return row
