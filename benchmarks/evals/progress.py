"""A progress bar on a terminal, and a line now and then elsewhere."""

import time
from collections.abc import Callable

WIDTH = 30
TERMINAL_SECONDS = 0.1
LINE_SECONDS = 10.0


class Progress:
    """Call with how many are done and how many there are; `close` ends the line. `write` adds nothing to its text."""

    def __init__(self, title: str, write: Callable[[str], object], *, terminal: bool) -> None:
        self._title = title
        self._write = write
        self._bar = terminal
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
            self._write(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {line}\x1b[K")
        else:
            self._write(f"{line}\n")

    def close(self) -> None:
        if self._bar and self._first is not None:
            self._write("\n")

    def _rest(self, done: int, total: int, seconds: float) -> str:
        new = done - (self._first or 0)
        return f", {(total - done) * seconds / new:.0f} s left" if new and done < total else ""
