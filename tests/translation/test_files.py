"""Files as they come: encodings that are kept, and hostile ones, each refused with one clear message."""

import gzip
import io
import zipfile

import pytest

from inference.translation import files
from inference.translation.files import read_document
from inference.translation.formats import FORMATS
from inference.translation.formats.document import BadFile, Options
from inference.translation.formats.encoding import encode

TEXT = "One 你好\r\ntwo\r\n"


def read(content: bytes, name: str = "txt"):
    return read_document(content, FORMATS[name], Options())


def zip_bomb() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"\0" * 10**7)
    return packed.getvalue()


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_encodings_and_marks_are_kept(codec):
    content = TEXT.encode(codec)
    if codec.startswith("utf-16"):
        content = "\ufeff".encode(codec) + content
    document = read(content)
    assert document.lines == ["One 你好", "two"]
    assert encode(document.text, document.encoding) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("good\nschön".encode("latin-1"), r"not valid UTF-8 \(line 2\)"),
        ("中文".encode("gb18030"), "not valid UTF-8"),
        ("text".encode("utf-32"), "UTF-32"),
        ("text".encode("utf-16-le"), "NUL"),
        (b"\xff\xfea\x00b", r"not valid UTF-16-LE \(line 1\)"),
        (zip_bomb(), r"archive \(ZIP\)"),
        (gzip.compress(b"text", mtime=0), r"archive \(gzip\)"),
        (b"%PDF-1.7", "PDF"),
        (b"", "nothing to translate"),
        (b"\xef\xbb\xbf \r\n 12 \r\n", "nothing to translate"),
    ],
    # The content would be its own name, and that of an archive has its time: workers must agree on names.
    ids=["Latin-1", "GB 18030", "UTF-32", "no mark", "half", "ZIP bomb", "gzip", "PDF", "empty", "no letters"],
)
def test_hostile_content_is_refused(content, message):
    with pytest.raises(BadFile, match=message):
        read(content)


def test_too_much_is_refused():
    with pytest.raises(BadFile, match=f"more than {files.MAX_LINES} lines"):
        read(b"a\n" * (files.MAX_LINES + 1))
    with pytest.raises(BadFile, match="line 2 is longer"):
        read(b"a\n" + b"b" * (files.MAX_LINE_CHARACTERS + 1))
