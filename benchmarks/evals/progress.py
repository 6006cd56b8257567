"""A progress bar on a terminal, and a line now and then elsewhere."""

import sys
import time
from typing import TextIO

WIDTH = 30
TERMINAL_SECONDS = 0.1
LINE_SECONDS = 10.0


class Progress:
    """Call with how many are done and how many there are; `close` ends the line."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._bar = self._stream.isatty()
        self._begun = time.monotonic()
        self._next = 0.0
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done  # what an earlier session did says nothing about the time that is left
        if now < self._next and done < total:
            return
        self._next = now + (TERMINAL_SECONDS if self._bar else LINE_SECONDS)
        line = f"{self._title} {done}/{total}{self._rest(done, total, now - self._begun)}"
        if self._bar:
            filled = WIDTH * done // max(total, 1)
            self._stream.write(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {line}\x1b[K")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._bar:
            self._stream.write("\n")

    def _rest(self, done: int, total: int, seconds: float) -> str:
        new = done - (self._first or 0)
        return f", {(total - done) * seconds / new:.0f} s left" if new and done < total else ""
