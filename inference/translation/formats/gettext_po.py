"""gettext's .po: messages without a translation are segments; the header and what is translated are left alone.

A message with plural forms has a segment for each: the first is translated from the singular, the others
from the plural.
"""

import re
from collections.abc import Iterator

from django.utils.translation import gettext as _

from inference.translation.formats.document import BadFile, Format, Options, Segment, has_words, line_at

_CONTENT = r'[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+'
_STRINGS = rf'"{_CONTENT}"(?:[ \t]*+(?:\r\n|\n)[ \t]*+"{_CONTENT}"(?=[ \t]*$))*+'
_ENTRY = re.compile(rf"^[ \t]*(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?)[ \t]+({_STRINGS})[ \t]*$", re.MULTILINE)
_KEYWORD = re.compile(r"^[ \t]*(?:msg[a-z_]+|\")", re.MULTILINE)
_LITERAL = re.compile(rf'"({_CONTENT})"')
_CHARSET = re.compile(r"charset=([\w-]+)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_PROTECTED = re.compile(r"</?[A-Za-z][^<>]*>|https?://[^\s<>\"]+|%\(\w+\)[a-z]|\{[A-Za-z_]\w*\}")


def find(text: str, options: Options) -> Iterator[Segment]:
    line_end = "\r\n" if "\r\n" in text else "\n"
    unix = text.replace("\r\n", " \n")  # of the same length, and $ finds the ends of its lines
    singular = plural = ""
    position = 0
    for entry in _ENTRY.finditer(unix):
        _check_between(unix, position, entry.start())
        position = entry.end()
        keyword, value = entry[1], _value(entry[2])
        if keyword == "msgid":
            singular, plural = value, value
        elif keyword == "msgid_plural":
            plural = value
        elif keyword.startswith("msgstr"):
            if not singular:
                _check_charset(value)
            elif not value:
                source = singular if keyword in ("msgstr", "msgstr[0]") else plural
                yield from _message(source, *entry.span(2), line_end)
    _check_between(unix, position, len(unix))
    if not position:
        raise BadFile(_("PO: there is no msgid in the file."))


def _check_between(text: str, start: int, end: int) -> None:
    stray = _KEYWORD.search(text, start, end)
    if stray:
        raise BadFile(_("PO: line %(line)d cannot be read.") % {"line": line_at(text, stray.start())})


def _check_charset(header: str) -> None:
    charset = _CHARSET.search(header)
    if charset and charset[1].upper() not in ("UTF-8", "UTF8", "ASCII", "US-ASCII", "CHARSET"):
        raise BadFile(
            _("PO: the header names the encoding %(charset)s. Convert the file to UTF-8.") % {"charset": charset[1]}
        )


def _message(source: str, start: int, end: int, line_end: str) -> Iterator[Segment]:
    core = source.strip()
    if not has_words(core):
        return
    before, after = source[: source.index(core)], source[source.index(core) + len(core) :]

    def write(translation: str) -> str:
        # msgfmt wants the same line breaks at the beginning and the end as the msgid has.
        return _literal(before + translation + after, line_end)

    yield Segment(start, end, core, write)


def _value(literals: str) -> str:
    joined = "".join(match[1] for match in _LITERAL.finditer(literals))
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), joined)


def _literal(value: str, line_end: str) -> str:
    escaped = [
        line.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")
        for line in re.findall(r"[^\n]*\n|[^\n]+", value)
    ]
    lines = escaped if len(escaped) == 1 else ["", *escaped]
    return line_end.join(f'"{line}"' for line in lines)


FORMAT = Format("po", (".po", ".pot"), find, _PROTECTED)
