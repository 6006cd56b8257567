"""What every format has in common: the parts of a file's text that are translated, and what is left as it is.

A format only says which spans of the text are segments. What lies between them is never taken apart and
put together again, so it comes back as it was, to the last character.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class BadFile(Exception):
    """The file cannot be translated. The message is for the person who sent it, in their language."""


@dataclass(frozen=True, slots=True)
class Options:
    """`column`: of a CSV file, by its name or its number from 1. `header`: the first row has the names."""

    column: str = ""
    header: bool = True


@dataclass(frozen=True, slots=True)
class Segment:
    """One text to translate. `write` turns its translation into what replaces `[start:end]` of the file."""

    start: int
    end: int
    text: str
    write: Callable[[str], str]


class Find(Protocol):
    def __call__(self, text: str, options: Options) -> Iterator[Segment]:
        """Every text of the file."""
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """`protected` matches parts of a segment that must come back unchanged, such as tags."""

    name: str
    extensions: tuple[str, ...]
    find: Find
    protected: re.Pattern[str] | None = None

    def segments(self, text: str, options: Options) -> Iterator[Segment]:
        """What there is to translate in a file's text, in its order. Raises BadFile."""
        for segment in self.find(text, options):
            if has_words(self.protected.sub("", segment.text) if self.protected else segment.text):
                yield segment

    def protected_parts(self, text: str) -> list[str]:
        return self.protected.findall(text) if self.protected else []


def segments(text: str, start: int, end: int, write: Callable[[str], str] = str) -> Iterator[Segment]:
    """`text[start:end]` as a segment, without the white space around it; none if there are no words in it."""
    part = text[start:end]
    core = part.strip()
    if has_words(core):
        begin = start + len(part) - len(part.lstrip())
        yield Segment(begin, begin + len(core), core, write)


def has_words(text: str) -> bool:
    return any(character.isalpha() for character in text)


def on_one_line(translation: str) -> str:
    return " ".join(filter(None, map(str.strip, translation.splitlines())))


def fill(text: str, found: Iterable[Segment], translations: Sequence[str | None]) -> str:
    """`text` with each segment translated; None leaves it as it is. One translation for each segment."""
    parts: list[str] = []
    last = 0
    for segment, translation in zip(found, translations, strict=True):
        if translation is not None:
            parts += text[last : segment.start], segment.write(translation)
            last = segment.end
    return "".join([*parts, text[last:]])


def line_at(text: str, position: int) -> int:
    """The number of the line, from 1, that a character is in."""
    return text.count("\n", 0, position) + 1
