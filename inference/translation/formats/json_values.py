"""JSON: the strings that are values are segments; keys, numbers and the layout are left alone."""

import json
import re
from collections.abc import Iterator

from django.utils.translation import gettext as _

from inference.translation.formats.document import BadFile, Format, Options, Segment, has_words, line_at

# Possessive, here and in other formats: what can be given back costs 100 bytes of memory a character.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*+:)?')
_PROTECTED = re.compile(r"</?[A-Za-z][^<>]*>|https?://[^\s<>\"]+|\$?\{[A-Za-z_][\w.]*\}")


def find(text: str, options: Options) -> Iterator[Segment]:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile(
            _("JSON: line %(line)d, column %(column)d: %(problem)s")
            % {"line": error.lineno, "column": error.colno, "problem": error.msg}
        ) from error
    except (RecursionError, ValueError) as error:  # also a number of too many digits
        raise BadFile(_("JSON: nested too deeply, or with a number that is too long.")) from error
    for match in _STRING.finditer(text):
        if not match[1]:
            yield from _value(text, *match.span())


def _value(text: str, start: int, end: int) -> Iterator[Segment]:
    raw = text[start:end]
    value = json.loads(raw)
    core = value.strip()
    if not has_words(core):
        return
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value):
        raise BadFile(
            _("JSON: the string in line %(line)d holds a NUL character or half of a surrogate pair.")
            % {"line": line_at(text, start)}
        )
    before, after = value[: value.index(core)], value[value.index(core) + len(core) :]

    def write(translation: str) -> str:
        string = json.dumps(before + translation + after, ensure_ascii="\\u" in raw)
        return string.replace("/", "\\/") if "\\/" in raw else string

    yield Segment(start, end, core, write)


FORMAT = Format("json", (".json",), find, _PROTECTED)
