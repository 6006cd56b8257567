"""The CSV of api_bench_tools: a run for each line. Its ITL is the gap between chunks."""

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.imports.results import Known, Throughputs, imported, latencies
from benchmarks.loadgen.records import RunResult

NAME = "ppl"
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "icl", "e2e": "e2el"}


def recognises(source: Fields) -> bool:
    return {"completed", "qps", "io_tps"} <= source.values.keys()


def read(source: Fields) -> list[RunResult]:
    """The number of requests and the duration follow from the success rate and the requests per second."""
    completed, success, rate = source.count("completed"), source.number("success_rate"), source.number("qps")
    known = Known(
        duration=completed / rate if completed and rate else None,
        completed=completed,
        failed=round(completed / success) - completed if completed and success else None,
        input_tokens=source.count("total_inlen"),
        output_tokens=source.count("total_outlen"),
        throughputs=Throughputs(requests=rate, output=source.number("o_tps"), total=source.number("io_tps")),
        input_length={"mean": source.number("avg_inlen"), "max": source.number("max_inlen")},
        output_length={"mean": source.number("avg_outlen"), "max": source.number("max_outlen")},
        latency_ms=latencies(source, METRICS, ""),
    )
    return [imported(source, NAME, known, profile={})]
