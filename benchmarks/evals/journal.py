"""The file of a run's items: appended to as answers come, and read again by a run that goes on.

The first line says what the run is; every other line is one item. A line counts once it is whole, so
a run that was killed in the middle of one loses that line alone.
"""

import fcntl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Item

ITEMS = "items.jsonl"


class Header(msgspec.Struct, kw_only=True):
    """What a run is identified by: only a run with the same settings goes on with its items."""

    settings: dict[str, Any]
    documents: int = 0  # that there are to answer
    begun: str = ""  # ISO 8601, UTC


class Journal:
    """Use as a context manager; it holds the folder for itself meanwhile. `items` are by document."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Go on with what is in `folder`, or begin. Raises EvalError when it holds another run, or one that runs."""
        self.items: dict[int, Item] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / ITEMS).open("a+b")
        except OSError as error:
            raise EvalError(f"output: {folder} cannot be written: {error.strerror}") from None
        try:
            self._lock(folder)
            self.header = self._take_up(folder, header)
        except EvalError:
            self._file.close()
            raise
        self.resumed = len(self.items)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def append(self, items: Iterable[Item]) -> None:
        """Keep items. They are with the operating system when this returns, so they outlive this process."""
        for item in items:
            if item.doc in self.items:
                raise ValueError(f"document {item.doc} was answered twice")
            self.items[item.doc] = item
            self._write(item)
        self._file.flush()

    def _lock(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvalError(f"output: another run is writing to {folder}") from None

    def _take_up(self, folder: Path, header: Header) -> Header:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        whole = lines[:-1]  # what is behind the last end of a line was torn off, or is nothing
        self._file.truncate(sum(len(line) + 1 for line in whole))
        if not whole:
            self._write(header)
            self._file.flush()
            return header
        try:
            found = msgspec.json.decode(whole[0], type=Header)
            for line in whole[1:]:
                item = msgspec.json.decode(line, type=Item)
                if item.doc in self.items:
                    raise EvalError(f"output: {folder / ITEMS} has document {item.doc} twice")
                self.items[item.doc] = item
        except msgspec.MsgspecError as error:
            raise EvalError(f"output: {folder / ITEMS} is not the items of a run: {error}") from None
        _compare(folder, found.settings, header.settings)
        return found

    def _write(self, record: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")


def read_header(folder: Path) -> Header | None:
    """What a run's file says of it; None while it is not there yet."""
    try:
        with (folder / ITEMS).open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(line, type=Header) if line.endswith(b"\n") else None


def read_items(folder: Path, after: int = 0) -> tuple[list[Item], int]:
    """The items behind byte `after` of a run's file, and where to go on; those of a run that writes, too.

    With `after` 0 the header is skipped. A file that is not there yet has no items.
    """
    try:
        with (folder / ITEMS).open("rb") as file:
            file.seek(after)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines()[0 if after else 1 :]
    return [msgspec.json.decode(line, type=Item) for line in lines], after + len(whole)


def _compare(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(wanted))
    names = sorted(name for name in found.keys() | plain.keys() if found.get(name) != plain.get(name))
    if names:
        changes = ", ".join(f"{name} {found.get(name)!r} -> {plain.get(name)!r}" for name in names)
        raise EvalError(f"output: {folder} holds a run with other settings ({changes}); choose another folder")
