"""What every data set is made from, and how rows of a file become as many prompts as are wanted."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.json_lines import numbered_lines
from benchmarks.loadgen.options import Profile
from benchmarks.loadgen.vocabulary import Vocabulary

Item = TypeVar("Item")


@dataclass(frozen=True)
class Source:
    """`count` prompts are wanted, all drawing is from `draw`, and lengths are in tokens of `vocabulary`."""

    profile: Profile
    count: int
    draw: Random
    vocabulary: Vocabulary

    @property
    def path(self) -> Path:
        """The data set's file. Raises BadOption where none is given."""
        if not self.profile.dataset_path:
            raise BadOption(f"--dataset-path: --dataset-name {self.profile.dataset_name} needs a file")
        return Path(self.profile.dataset_path)

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        shuffled = list(items)
        if not self.profile.disable_shuffle:
            self.draw.shuffle(shuffled)
        return shuffled

    def filled(self, items: Sequence[Item]) -> list[Item]:
        """`count` of the items, with repetitions drawn where there are too few, unless --no-oversample."""
        taken = list(items[: self.count])
        if taken and self.profile.oversample:
            taken += self.draw.choices(taken, k=self.count - len(taken))
        return taken


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .json (a list), .jsonl, .csv or .parquet file. Raises BadOption, naming the line."""
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as lines:
                return list(csv.DictReader(lines))
        if path.suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"--dataset-path: {error}") from None
    except (csv.Error, ValueError) as error:  # pyarrow raises the latter
        raise BadOption(f"--dataset-path: {path}: {error}") from None
    if path.suffix == ".json":
        return _objects(path, _parse(path, text))
    return _objects(path, [_parse(path, line, number) for number, line in numbered_lines(text)])


def read_json(path: Path) -> Any:
    """Raises BadOption."""
    try:
        return _parse(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"--dataset-path: {error}") from None


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadOption(f"--dataset-path: {path} needs the package pyarrow, which is not installed") from None
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _parse(path: Path, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        place = f"{path}, line {line}" if line else str(path)
        raise BadOption(f"--dataset-path: {place}: {error}") from None


def _objects(path: Path, rows: Any) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadOption(f"--dataset-path: {path} does not hold one JSON object for each row")
    return rows
