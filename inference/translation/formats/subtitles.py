"""SubRip subtitles: the text of each cue is a segment; numbers and times are left alone."""

import re
from collections.abc import Iterator

from django.utils.translation import gettext as _

from inference.translation.formats.document import BadFile, Format, Options, Segment, segments

_TIMES = re.compile(
    r"^[ \t]*\d+:\d\d:\d\d[,.]\d{1,3}[ \t]*-->[ \t]*\d+:\d\d:\d\d[,.]\d{1,3}[^\r\n]*(?:\r\n|\r|\n|\Z)", re.MULTILINE
)
_END = re.compile(r"(?:\r\n|\n|\r(?!\n))[ \t]*[\r\n]|\Z")  # a blank line
_PROTECTED = re.compile(r"</?[A-Za-z][^<>]*>|\{\\[^{}]*\}")  # <i>, {\an8}


def find(text: str, options: Options) -> Iterator[Segment]:
    line_end = "\r\n" if "\r\n" in text else "\n"

    def write(translation: str) -> str:
        """Without blank lines, which end a cue, and arrows, which begin one."""
        lines = [line.strip().replace("-->", "→") for line in translation.splitlines()]
        return line_end.join(filter(None, lines))

    cue = _TIMES.search(text)
    if not cue:
        raise BadFile(_("SRT: there is no line of times, such as 00:00:01,000 --> 00:00:02,500."))
    while cue:
        following = _TIMES.search(text, cue.end())
        limit = following.start() if following else len(text)
        if text[cue.end() : cue.end() + 1] not in ("\r", "\n"):  # a cue may be empty
            end = _END.search(text, cue.end(), limit).start()  # no further than the cue: a file may have no blank line
            for segment in segments(text, cue.end(), end, write):
                yield Segment(segment.start, segment.end, "\n".join(segment.text.splitlines()), write)
        cue = following


FORMAT = Format("srt", (".srt",), find, _PROTECTED)
