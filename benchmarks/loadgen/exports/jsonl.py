"""JSON lines: the run without its records first, then one line for each request with all of its chunks."""

import msgspec

from benchmarks.loadgen.records import RunResult


def write(result: RunResult) -> bytes:
    head = {key: value for key, value in msgspec.to_builtins(result).items() if key != "records"}
    return msgspec.json.Encoder().encode_lines([head, *result.records])
