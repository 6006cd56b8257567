"""Our own result file, so that a run measured on one machine can be kept in the history of another."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.records import RunResult

NAME = "native"
_HEAD = {"run_id", "kind", "summary"}


def recognises(source: Fields) -> bool:
    return _HEAD | {"records"} <= source.values.keys()


def joined(values: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines of our JSON lines put together: each run has a head, and its records are the lines below it.

    Values of any other kind stay as they are.
    """
    runs: list[Mapping[str, Any]] = []
    records: list[Mapping[str, Any]] | None = None  # of the head above
    for value in values:
        if value.keys() >= _HEAD:
            records = None if "records" in value else []
            runs.append(value if records is None else {**value, "records": records})
        elif records is None:
            runs.append(value)
        else:
            records.append(value)
    return runs


def read(source: Fields) -> list[RunResult]:
    try:
        return [msgspec.convert(source.values, RunResult)]
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise source.bad(path.rstrip("`") or "result", message) from None
