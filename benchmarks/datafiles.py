"""Files of data sets: where they may be, and what is in them."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ValidationError

from benchmarks.loadgen.json_lines import numbered_lines


@dataclass(frozen=True, slots=True)
class Facts:
    sha256: str = ""
    rows: int | None = None
    lengths: dict[str, float] = field(default_factory=dict)  # characters of a row


def folder() -> Path:
    return settings.RWKV.var_dir / "benchmarks" / "datasets"


def resolve(path: str) -> Path:
    """The file that `path` names. Raises ValidationError for a way out of the folder of data sets."""
    file = (folder() / path).resolve()
    if not file.is_relative_to(folder().resolve()):
        raise ValidationError(f"{path!r} leads out of the folder of data sets")
    return file


def check_path(path: str) -> None:
    """Raises ValidationError unless `path` is a file below the folder of data sets."""
    if not resolve(path).is_file():
        raise ValidationError(f"{path!r} is not a file in {folder()}")


def measure(path: str) -> Facts:
    """Digest, number of rows and their lengths. Rows are the elements of a JSON array, else the lines.

    Raises ValidationError unless `path` is a file below the folder of data sets that can be read.
    """
    check_path(path)
    try:
        content = resolve(path).read_bytes()
    except OSError as error:
        raise ValidationError(f"{path!r} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256(content).hexdigest()
    text = content.decode("utf-8", "replace")
    try:
        rows = [json.dumps(row, ensure_ascii=False) for row in json.loads(text)] if text.startswith("[") else None
    except ValueError as error:
        raise ValidationError(f"{path!r} begins like a JSON array and is none: {error}") from None
    if rows is None:
        rows = [line for _, line in numbered_lines(text)]
    lengths = [len(row) for row in rows]
    if not lengths:
        return Facts(digest, 0)
    stats = {"min": min(lengths), "mean": round(sum(lengths) / len(lengths), 1), "max": max(lengths)}
    return Facts(digest, len(lengths), stats)
