"""A run's result as a JSON file: everything there is, so that any other form can be made from it later."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from benchmarks.loadgen.records import RunResult


def save(result: RunResult, path: Path) -> None:
    """Write it whole or not at all: a reader never sees half a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(msgspec.json.encode(result))
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def load(path: Path) -> RunResult:
    """Raises OSError, and ValueError for a file that is no result."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunResult)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no result of a run: {error}") from None
