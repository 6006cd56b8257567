"""Bytes to text and back. What is not certain is refused: a wrong guess would garble the whole file."""

import codecs
from dataclasses import dataclass

from django.utils.translation import gettext as _

from inference.translation.formats.document import BadFile, line_at

_MARKS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
_UTF32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_ARCHIVES = {
    b"PK\x03\x04": "ZIP",  # and everything built on it: .docx, .xlsx, .odt, .epub, .jar
    b"PK\x05\x06": "ZIP",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!\x1a\x07": "RAR",
    b"\x28\xb5\x2f\xfd": "Zstandard",
}
_TAR_MAGIC = slice(257, 262)


@dataclass(frozen=True, slots=True)
class Encoding:
    name: str
    marked: bool  # whether the file begins with a byte order mark


def decode(content: bytes) -> tuple[str, Encoding]:
    """The text without its byte order mark, and how it was encoded. Raises BadFile."""
    _refuse_archives(content)
    encoding, mark = next(((name, mark) for name, mark in _MARKS.items() if content.startswith(mark)), ("utf-8", b""))
    if content.startswith(_UTF32_MARKS):  # whose first bytes are a mark of UTF-16
        raise BadFile(_("The file is encoded as UTF-32. Save it as UTF-8 and send it again."))
    try:
        text = content[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        line = line_at(error.object[: error.start].decode(encoding, "replace"), len(content))
        raise BadFile(
            _("The file is not valid %(encoding)s (line %(line)d). Save it as UTF-8 and send it again.")
            % {"encoding": encoding.upper(), "line": line}
        ) from error
    if "\0" in text:
        raise BadFile(_("The file holds NUL characters, so it is no text file, or one in UTF-16 without a mark."))
    return text, Encoding(encoding, bool(mark))


def encode(text: str, encoding: Encoding) -> bytes:
    return (_MARKS[encoding.name] if encoding.marked else b"") + text.encode(encoding.name)


def _refuse_archives(content: bytes) -> None:
    kind = next((name for magic, name in _ARCHIVES.items() if content.startswith(magic)), "")
    if content[_TAR_MAGIC] == b"ustar":
        kind = "tar"
    if kind:
        raise BadFile(
            _("The file is an archive (%(kind)s), whatever its name says. Archives are never opened: send the text.")
            % {"kind": kind}
        )
    if content.startswith(b"%PDF-"):
        raise BadFile(_("The file is a PDF document. Send its text."))
