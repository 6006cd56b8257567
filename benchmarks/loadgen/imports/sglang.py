"""The JSON lines of SGLang's serving benchmark, a line for each run."""

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.imports.results import Known, Throughputs, imported, latencies
from benchmarks.loadgen.records import RunResult

NAME = "sglang"
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2el"}
OPTIONS = (
    "backend",
    "dataset_name",
    "request_rate",
    "max_concurrency",
    "sharegpt_output_len",
    "random_input_len",
    "random_output_len",
    "random_range_ratio",
)


def recognises(source: Fields) -> bool:
    return "total_throughput" in source.values and "mean_e2e_latency_ms" in source.values


def read(source: Fields) -> list[RunResult]:
    completed = source.count("completed")
    known = Known(
        duration=source.needed("duration"),
        completed=completed,
        failed=source.count("failed"),
        input_tokens=source.count("total_input_tokens"),
        output_tokens=source.count("total_output_tokens"),
        throughputs=Throughputs(
            requests=source.needed("request_throughput"),
            input=source.number("input_throughput"),
            output=source.number("output_throughput"),
            total=source.number("total_throughput"),
        ),
        peak_output_throughput=source.number("max_output_tokens_per_s"),
        concurrency_mean=source.number("concurrency"),
        concurrency_max=source.number("max_concurrent_requests"),
        latency_ms=latencies(source, METRICS, "_ms"),
    )
    server = source.values.get("server_info")
    profile = {**{name: source.values.get(name) for name in OPTIONS}, "label": source.text("tag")}
    result = imported(source, NAME, known, model=_model(source), profile=profile)
    if isinstance(server, dict):
        result.server["info"] = server
    return [result]


def _model(source: Fields) -> str | None:
    if not isinstance(source.values.get("server_info"), dict):
        return None
    info = source.inner("server_info")
    return info.text("served_model_name") or info.text("model_path")
