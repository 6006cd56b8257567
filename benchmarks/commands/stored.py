"""Results as a command line names them: by file, or by the number of a stored run."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.loadgen import imports
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.records import RunResult


class NoResult(BadOption):
    """A word names no result. The message says which."""


def load_all(words: Sequence[str]) -> list[RunResult]:
    """The results in order; a file may hold several. Raises NoResult."""
    return [result for word in words for result in _load(word)]


def read_file(path: Path, format_name: str | None = None) -> list[RunResult]:
    """The runs of a file; its format is recognised unless it is given. Raises NoResult."""
    try:
        return imports.load(path, format_name)
    except OSError as error:
        raise NoResult(f"{path}: {error.strerror}") from None
    except imports.BadFile as error:
        raise NoResult(str(error)) from None


def _load(word: str) -> list[RunResult]:
    return [_load_run(int(word))] if word.isdecimal() and not Path(word).exists() else read_file(Path(word))


def _load_run(number: int) -> RunResult:
    # Only here is the database needed: files are read without one.
    from django.core.exceptions import ObjectDoesNotExist

    from benchmarks.storage import load_result

    try:
        return load_result(number)
    except ObjectDoesNotExist:
        raise NoResult(f"{number}: there is no run of this number, nor a file of this name") from None
