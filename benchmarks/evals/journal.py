"""The file of a run's items: appended to as answers come, and read again by a run that goes on.

The first line says what the run is; every other line is one item. A line counts once it is whole, so
a run that was killed in the middle of one loses that line alone.
"""

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Item

ITEMS = "items.jsonl"
BEGINNING = b'{"settings":'  # of every file of ours


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
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk refused must not be tried again when the file is closed.
            self._file = (folder / ITEMS).open("a+b", buffering=0)
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            self._lock()
            self.header = self._take_up(header)
        except BaseException:
            self._file.close()
            raise
        self.resumed = len(self.items)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def append(self, items: Sequence[Item]) -> None:
        """Keep items: they are with the operating system when this returns, so they outlive this process.

        Raises EvalError when the file cannot be written.
        """
        for item in items:
            if item.doc in self.items:
                raise ValueError(f"document {item.doc} was answered twice")
        self._write(items)
        self.items |= {item.doc: item for item in items}

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvalError(f"output: another run is writing to {self._folder}") from None

    def _take_up(self, header: Header) -> Header:
        """The header that counts: the one in the file, or this one. Changes nothing of a file that is not ours."""
        path = self._folder / ITEMS
        content = path.read_bytes()
        *whole, torn = content.split(b"\n")  # what is behind the last end of a line was torn off, or is nothing
        if not whole and torn[: len(BEGINNING)] != BEGINNING[: len(torn)]:
            raise EvalError(f"output: {path} is not the items of a run")
        if not whole:
            self._file.truncate(0)
            self._write([header])
            return header
        try:
            found = msgspec.json.decode(whole[0], type=Header)
            for line in whole[1:]:
                item = msgspec.json.decode(line, type=Item)
                if item.doc in self.items:
                    raise EvalError(f"output: {path} has document {item.doc} twice")
                self.items[item.doc] = item
        except msgspec.MsgspecError as error:
            raise EvalError(f"output: {path} is not the items of a run: {error}") from None
        _compare(self._folder, found.settings, header.settings)
        self._file.truncate(len(content) - len(torn))
        return found

    def _write(self, records: Sequence[msgspec.Struct]) -> None:
        rest = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise unwritable(self._folder, error) from None


def unwritable(folder: Path, error: OSError) -> EvalError:
    return EvalError(f"output: {folder} cannot be written: {error.strerror}")


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
