r"""CSV: the cells of one column are segments.

A spreadsheet takes a cell that begins with = + - @ as a formula, and may run it. A translation must not
become one, so it gets an apostrophe in front, which spreadsheets do not show. Cells that are not translated
stay as they came.
"""

import re
from collections.abc import Iterator

from django.utils.translation import gettext as _

from inference.translation.formats.document import BadFile, Format, Options, Segment, has_words, line_at

DELIMITERS = ",;\t|"
_FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
_NEEDS_QUOTES = re.compile(rf'[{DELIMITERS}"\r\n]|^\s|\s$')
_SAMPLE_CHARACTERS = 20_000
MAX_COLUMNS = 10_000


def find(text: str, options: Options) -> Iterator[Segment]:
    index: int | None = None
    for row in read_rows(text, guess_delimiter(text)):
        if index is None:
            index = _column(text, row, options)
            if options.header:
                continue
        if index < len(row):
            yield from _cell(text, *row[index])


def read_rows(text: str, delimiter: str) -> Iterator[list[tuple[int, int]]]:
    """The spans of the cells of each row, with their quotes. Raises BadFile for an open quote, or too many cells."""
    field = re.compile(rf'"[^"]*+(?:""[^"]*+)*+"(?=[{re.escape(delimiter)}\r\n]|\Z)|[^{re.escape(delimiter)}\r\n]*')
    position, row = 0, []
    while position < len(text):
        match = field.match(text, position)
        if match[0].startswith('"') and match[0].count('"') % 2:
            raise BadFile(
                _("CSV: the quote that opens in line %(line)d is not closed.") % {"line": line_at(text, position)}
            )
        if len(row) == MAX_COLUMNS:
            raise BadFile(
                _("CSV: line %(line)d has more than %(most)d columns.")
                % {"line": line_at(text, position), "most": MAX_COLUMNS}
            )
        row.append(match.span())
        position = match.end()
        if text.startswith(delimiter, position):
            position += 1
            if position == len(text):
                row.append((position, position))
        else:
            position += 2 if text.startswith("\r\n", position) else 1
            yield row
            row = []
    if row:
        yield row


def guess_delimiter(text: str) -> str:
    """The delimiter that the first row has most of, outside of quotes."""
    first = re.sub(r'"[^"]*+(?:""[^"]*+)*+"', "", text[:_SAMPLE_CHARACTERS]).lstrip("\r\n").splitlines()[:1]
    return max(DELIMITERS, key="".join(first).count)


def _column(text: str, row: list[tuple[int, int]], options: Options) -> int:
    """The index of the chosen column: by its name, else by its number. One column alone needs no choice."""
    names = [_value(text[start:end]).strip() for start, end in row]
    if options.header and options.column in names:
        return names.index(options.column)
    if options.column.isdecimal() and 1 <= int(options.column) <= len(names):
        return int(options.column) - 1
    if not options.column and len(names) == 1:
        return 0
    shown = ", ".join(name[:40] for name in names[:20]) if options.header else f"1-{len(names)}"
    if not options.column:
        raise BadFile(_("CSV: choose the column to translate. There are: %(columns)s") % {"columns": shown})
    raise BadFile(
        _("CSV: there is no column “%(column)s”. There are: %(columns)s")
        % {"column": options.column[:40], "columns": shown}
    )


def _cell(text: str, start: int, end: int) -> Iterator[Segment]:
    raw = text[start:end]
    value = _value(raw)
    if not has_words(value):
        return
    core = value.strip()
    before, after = value[: value.index(core)], value[value.index(core) + len(core) :]
    quoted = _is_quoted(raw)
    line_end = "\r\n" if "\r\n" in value else "\n"

    def write(translation: str) -> str:
        lines = translation.splitlines()
        cell = before + (line_end if line_end in value else " ").join(lines) + after
        if _FORMULA.match(cell):
            cell = f"'{cell}"
        return '"{}"'.format(cell.replace('"', '""')) if quoted or _NEEDS_QUOTES.search(cell) else cell

    yield Segment(start, end, core, write)


def _value(raw: str) -> str:
    return raw[1:-1].replace('""', '"') if _is_quoted(raw) else raw


def _is_quoted(raw: str) -> bool:
    return len(raw) >= 2 and raw[0] == raw[-1] == '"'


FORMAT = Format("csv", (".csv", ".tsv"), find)
