"""The lines of a file that has a JSON value on each."""

from collections.abc import Iterator


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of those that are not blank.

    Only line feeds end a line: str.splitlines also breaks at characters that a JSON string may hold as they are,
    such as U+2028.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line
