"""Our own result file, so that a run measured on one machine can be kept in the history of another."""

import msgspec

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.records import RunResult

NAME = "native"


def recognises(source: Fields) -> bool:
    return {"run_id", "kind", "summary", "records"} <= source.values.keys()


def read(source: Fields) -> list[RunResult]:
    try:
        return [msgspec.convert(source.values, RunResult)]
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise source.bad(path.rstrip("`") or "result", message) from None
