"""Files of documents: JSON lines or CSV, read with errors that name the line."""

import csv
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.evals.errors import EvalError

T = TypeVar("T", bound=msgspec.Struct)
Made = TypeVar("Made")

SHIPPED = Path(__file__).parent / "data"
HASH_BYTES = 1 << 20
# Public files by name. LAMBADA's test split as OpenAI made it: 5,153 lines with one field `text`.
PUBLIC = {"lambada-openai": "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"}
SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def sha256(path: Path) -> str:
    """Of the file's bytes. Raises EvalError."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(HASH_BYTES):
                digest.update(piece)
    except OSError as error:
        raise EvalError(f"data: {path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def check_sha256(path: Path, expected: str) -> str:
    """The file's checksum. Raises EvalError when another one was expected; "" expects nothing."""
    found = sha256(path)
    if expected and found != expected.lower():
        raise EvalError(f"data: {path} has the SHA-256 {found}, not {expected.lower()}: it is another file, or damaged")
    return found


def known_sha256(text: str) -> str:
    """The checksum that `text` is, or that the public file of this name has; "" for "". Raises EvalError."""
    if not text or SHA256.fullmatch(text):
        return text
    if text not in PUBLIC:
        raise EvalError(f"sha256: {text!r} is neither 64 hexadecimal digits nor one of {', '.join(PUBLIC)}")
    return PUBLIC[text]


def read_rows(path: Path, row: type[T], make: Callable[[int, T], Made]) -> list[Made]:
    """`make(index, row)` of every row that is not blank, as a list.

    A `.csv` has a line of names first; everything else is JSON lines. Raises EvalError for a row that
    is not a `row`, and for one that `make` refuses with a ValueError.
    """
    made: list[Made] = []
    for number, values in _raw_rows(path):
        try:
            made.append(make(len(made), msgspec.convert(values, row, strict=path.suffix != ".csv")))
        except (msgspec.ValidationError, ValueError) as error:
            raise EvalError(f"data: {path}, line {number}: {error}") from None
    if not made:
        raise EvalError(f"data: {path} has no documents")
    return made


def read_text(path: Path) -> str:
    """Raises EvalError for a file that is not there, or is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise EvalError(f"data: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise EvalError(f"data: {path} is not UTF-8: {error}") from None


def _raw_rows(path: Path) -> Iterator[tuple[int, Any]]:
    lines = read_text(path).removeprefix("\ufeff").split("\n")
    if path.suffix == ".csv":
        reader = csv.DictReader(line + "\n" for line in lines)
        yield from ((reader.line_num, values) for values in reader)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise EvalError(f"data: {path}, line {number} is not JSON: {error}") from None
