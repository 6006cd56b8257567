"""A result in the formats that others read. Adding one is a module with `write` and a line in `FORMATS`.

A module is imported when its format is asked for: a load need not wait for the library that writes workbooks.
"""

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from benchmarks.loadgen.records import RunResult


class Writer(Protocol):
    def write(self, result: RunResult) -> bytes: ...


@dataclass(frozen=True)
class Format:
    module: str
    extension: str
    content_type: str


FORMATS = {
    "vllm": Format("vllm_json", "json", "application/json"),
    "pytorch": Format("pytorch_json", "pytorch.json", "application/json"),
    "multiturn": Format("multiturn_json", "json", "application/json"),
    "ppl": Format("ppl_csv", "csv", "text/csv; charset=utf-8"),
    "csv": Format("records_csv", "csv", "text/csv; charset=utf-8"),
    "streams": Format("streams_csv", "csv", "text/csv; charset=utf-8"),
    "xlsx": Format("xlsx", "xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    "html": Format("html", "html", "text/html; charset=utf-8"),
    "jsonl": Format("jsonl", "jsonl", "application/x-ndjson"),
}


def export(result: RunResult, name: str) -> bytes:
    """The whole file. Raises ValueError for a format that is not there."""
    if name not in FORMATS:
        raise ValueError(f"format: {name!r} is none of {', '.join(FORMATS)}")
    writer = cast(Writer, import_module(f"benchmarks.loadgen.exports.{FORMATS[name].module}"))
    return writer.write(result)


def file_name(result: RunResult, name: str) -> str:
    """What to call the file; vLLM's results have a rule of their own."""
    if name == "vllm":
        from benchmarks.loadgen.exports import vllm_json

        return vllm_json.file_name(result)
    run = re.sub(r"[^\w.+-]", "_", result.run_id)
    return f"{run}-{name}.{FORMATS[name].extension}"
