"""Markdown: paragraphs, headings, items and cells are segments; code, comments and front matter are left alone.

Lines of one paragraph are one segment, because a sentence may go on over the end of a line. This reads no
nested structure: it only has to know what is text, and where a text ends.
"""

import re
from collections.abc import Iterator

from inference.translation.formats.document import Format, Options, Segment, has_words, on_one_line, segments

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
_MARKERS = re.compile(r"[ \t]*(?:>[ \t]?|#{1,6}[ \t]+|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?|\d{1,9}[.)][ \t]+)*[ \t]*")
_REFERENCE = re.compile(r" {0,3}\[[^\]]+\]:")
_CELL = re.compile(r"(?:\\.|[^|\\])+")
_INDENTED = re.compile(r"(?: {4}|\t)")
_RAW = re.compile(r"\s*<(?:(script|style|pre)\b|(!--))", re.IGNORECASE)
_STRUCTURE = re.compile(r"#{1,6}\s|>|[-*+]\s|\d{1,9}[.)]\s|```|~~~|\||=+$|-+$")
# Code, the targets of links and images, addresses, tags.
_PROTECTED = re.compile(r"`[^`]+`|(?<=\])\([^()\s]+\)|<[^<>\s][^<>]*>|https?://[^\s<>()]+")


def find(text: str, options: Options) -> Iterator[Segment]:
    paragraph: tuple[int, int] | None = None
    for start, end, joins in _spans(text):
        if paragraph and joins:
            paragraph = paragraph[0], end
            continue
        if paragraph:
            yield from _paragraph(text, *paragraph)
        paragraph = start, end
    if paragraph:
        yield from _paragraph(text, *paragraph)


def _spans(text: str) -> Iterator[tuple[int, int, bool]]:
    """Spans of text in lines, and whether one goes on with the paragraph of the span before it."""
    closing: re.Pattern[str] | None = None  # what ends the block that is left alone
    blank, in_list, may_join = True, False, False
    for match in _LINE.finditer(text):
        start, line = match.start(), match[0].rstrip("\r\n")
        if closing:
            closing = None if closing.search(line) else closing
            may_join = False
            continue
        closing = _opens(line, start)
        if closing or _REFERENCE.match(line):
            in_list = in_list and line[:1] in " \t"
            may_join = False
            continue
        if not line.strip():
            blank, may_join = True, False
            continue
        prefix = _MARKERS.match(line).end()
        marked = bool(line[:prefix].strip())
        if blank and not in_list and _INDENTED.match(line):  # a block of code
            continue
        in_list = (in_list and (not blank or line[:1] in " \t")) or (marked and line.lstrip()[0] not in "#>")
        blank = False
        if line.lstrip().startswith("|"):
            for cell in _CELL.finditer(line):
                yield start + cell.start(), start + cell.end(), False
            may_join = False
        elif has_words(line):
            yield start + prefix, start + len(line), may_join and not marked
            hard_break = line.endswith(("  ", "\\"))
            may_join = not hard_break and not line.lstrip().startswith("#")
        else:
            may_join = False


def _opens(line: str, start: int) -> re.Pattern[str] | None:
    """What ends the block that this line begins, if it begins one that is left alone."""
    if start == 0 and line.rstrip() == "---":
        return re.compile(r"^(?:---|\.\.\.)\s*$")
    if fence := _FENCE.match(line):
        return re.compile(rf"^[ \t>]*{re.escape(fence[1][0])}{{{len(fence[1])},}}\s*$")
    if raw := _RAW.match(line):
        end = re.compile("-->" if raw[2] else rf"</{raw[1]}\s*>", re.IGNORECASE)
        return None if end.search(line) else end
    return None


def _paragraph(text: str, start: int, end: int) -> Iterator[Segment]:
    for segment in segments(text, start, end, _as_text):
        if _RAW.match(segment.text):  # one that ends on its own line
            continue
        yield Segment(segment.start, segment.end, on_one_line(segment.text), segment.write)


def _as_text(translation: str) -> str:
    """On one line, and not beginning with what would make it something else than text."""
    line = on_one_line(translation)
    return f"\\{line}" if _STRUCTURE.match(line) else line


FORMAT = Format("md", (".md", ".markdown"), find, _PROTECTED)
