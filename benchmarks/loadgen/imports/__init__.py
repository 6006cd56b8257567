"""Result files as runs: our own, and those of other tools.

Adding a format is a module with `recognises` and `read`, and a line here.
"""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.loadgen.imports import aiperf, guidellm, native, ppl, sglang, vllm
from benchmarks.loadgen.imports.fields import BadFile, Fields
from benchmarks.loadgen.json_lines import numbered_lines
from benchmarks.loadgen.records import RunResult

__all__ = ["FORMATS", "BadFile", "load"]


@dataclass(frozen=True)
class Format:
    name: str
    recognises: Callable[[Fields], bool]
    read: Callable[[Fields], list[RunResult]]


FORMATS = {
    one.NAME: Format(one.NAME, one.recognises, one.read) for one in (native, vllm, sglang, guidellm, aiperf, ppl)
}


def load(path: Path, name: str | None = None) -> list[RunResult]:
    """All runs of a file; its format is recognised unless `name` says it.

    Raises BadFile, with the file and the field; OSError where the file cannot be read.
    """
    if name is not None and name not in FORMATS:
        raise BadFile(f"{path}: {name!r} is none of the formats {', '.join(FORMATS)}")
    results = []
    for place, values in enumerate(_objects(path), start=1):
        source = Fields(str(path), values)
        found = FORMATS[name] if name else next((one for one in FORMATS.values() if one.recognises(source)), None)
        if found is None:
            raise BadFile(f"{path}: entry {place} is none of the formats {', '.join(FORMATS)}")
        results += found.read(source)
    return results


def _objects(path: Path) -> list[Mapping[str, Any]]:
    """One JSON object, or one for each line, or the rows of a CSV."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: is no text: {error}") from None
    if not text.strip():
        raise BadFile(f"{path}: is empty")
    if not text.lstrip().startswith(("{", "[")):
        return _rows(path, text)
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [_line(path, number, line) for number, line in numbered_lines(text)]
    if not all(isinstance(value, Mapping) for value in values):
        raise BadFile(f"{path}: is not an object")
    return native.joined(values)


def _rows(path: Path, text: str) -> list[Mapping[str, Any]]:
    """Of a CSV. Cells beyond its header have no name, and are left out."""
    try:
        rows = [{name: cell for name, cell in row.items() if name} for row in csv.DictReader(StringIO(text))]
    except csv.Error as error:
        raise BadFile(f"{path}: is no CSV: {error}") from None
    if not rows:
        raise BadFile(f"{path}: has a header and no line below it")
    return [*rows]


def _line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadFile(f"{path}: line {number}: is no JSON: {error}") from None
