"""From the bytes of a file to the lines of a job, and back to a file of the same kind."""

from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath

from django.utils.translation import gettext as _

from inference.translation.formats import FORMATS
from inference.translation.formats.document import BadFile, Format, Options, fill, line_at
from inference.translation.formats.encoding import Encoding, decode, encode
from inference.translation.models import LineStatus, TranslationJob

MAX_LINES = 20_000
MAX_LINE_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class Document:
    """A file that can be translated. `lines` are the texts of its segments."""

    text: str
    encoding: Encoding
    format: Format
    options: Options
    lines: list[str]


def read_document(content: bytes, format: Format, options: Options) -> Document:
    """Raises BadFile."""
    text, encoding = decode(content)
    found = list(islice(format.segments(text, options), MAX_LINES + 1))
    if not found:
        raise BadFile(_("There is nothing to translate in it."))
    if len(found) > MAX_LINES:
        raise BadFile(_("It has more than %(most)d lines to translate. Split it.") % {"most": MAX_LINES})
    for segment in found:
        if len(segment.text) > MAX_LINE_CHARACTERS:
            raise BadFile(
                _("The text in line %(line)d is longer than %(most)d characters. Split it.")
                % {"line": line_at(text, segment.start), "most": MAX_LINE_CHARACTERS}
            )
    return Document(text, encoding, format, options, [segment.text for segment in found])


def write_file(job: TranslationJob) -> bytes:
    """The job's file with what is translated so far; the other lines are as they came."""
    text = job.source.text
    lines = job.lines.order_by("number").values_list("status", "translation")
    translations = [translation if status == LineStatus.DONE else None for status, translation in lines]
    found = FORMATS[job.format].segments(text, job.options)
    return encode(fill(text, found, translations), Encoding(job.encoding, job.marked))


def download_name(job: TranslationJob) -> str:
    """The file's name with the language before its extension."""
    path = PurePath(job.filename or f"translation.{job.format}")
    return f"{path.stem}.{job.target_language}{path.suffix}"
