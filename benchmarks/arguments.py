"""What management commands take on their command lines. All raise ArgumentTypeError, which says what was expected."""

from argparse import ArgumentTypeError
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.loadgen.loopback import is_loopback
from benchmarks.output_files import writable


def loopback_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise ArgumentTypeError(f"{text!r} is not an http URL")
    if not is_loopback(parts.hostname):
        raise ArgumentTypeError(f"{text!r} is not a loopback address, and only this machine's services are loaded")
    return text.rstrip("/")


def counts(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def output_file(text: str) -> Path:
    """A file that can be written: better refused now than when all is measured."""
    try:
        return writable(Path(text))
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror}") from None


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number
