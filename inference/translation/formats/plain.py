"""Plain text: each line is a segment."""

import re
from collections.abc import Iterator

from inference.translation.formats.document import Format, Options, Segment, on_one_line, segments

_LINE = re.compile(r"[^\r\n]+")


def find(text: str, options: Options) -> Iterator[Segment]:
    for line in _LINE.finditer(text):
        yield from segments(text, line.start(), line.end(), on_one_line)


FORMAT = Format("txt", (".txt", ".text"), find)
