"""The twin of vLLM's result JSON for the benchmark database of PyTorch: one record for each latency figure."""

from typing import Any

import msgspec

from benchmarks.loadgen.exports.vllm_json import to_vllm
from benchmarks.loadgen.records import RunResult

METRICS = tuple(
    f"{figure}_{name}_ms" for name in ("ttft", "tpot", "itl") for figure in ("median", "mean", "std", "p99")
)


def write(result: RunResult) -> bytes:
    return msgspec.json.encode(to_records(result)) + b"\n"


def to_records(result: RunResult) -> list[dict[str, Any]]:
    """Only of figures that exist; `extra_info` has the other fields of the run, without lists of its requests."""
    fields = to_vllm(result, detailed=False)
    rest = {name: value for name, value in fields.items() if name not in METRICS}
    return [
        {
            "benchmark": {"name": "vLLM benchmark", "extra_info": {"args": result.profile}},
            "model": {"name": fields["model_id"]},
            "metric": {"name": name, "benchmark_values": [fields[name]], "extra_info": rest},
        }
        for name in METRICS
        if fields.get(name) is not None
    ]
