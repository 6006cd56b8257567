"""Terms that a translation must keep, or must have a certain translation.

Each is replaced by a marker before the text is sent. The translation service brings every marker back, which
is then replaced by what the glossary says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from django.utils.translation import gettext as _

MAX_TERMS = 200
MAX_TERM_CHARACTERS = 200

# Scripts with spaces between their words: a term does not begin or end in the midst of one.
_LETTER = r"[0-9A-Za-z_\u00c0-\u052f]"
# A text may have markers of its own, of any length: ours are the shortest that it has not.
_MARKER = re.compile(r"\{\{[0-9]+\}\}")


@dataclass(frozen=True, slots=True)
class Term:
    source: str
    target: str


class BadGlossary(Exception):
    """The message names the line."""


def parse_glossary(text: str) -> list[Term]:
    """One term a line: `term`, which stays as it is, or `term = translation`. Raises BadGlossary."""
    terms: dict[str, Term] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        source, equals, target = (part.strip() for part in line.partition("="))
        if not source and not equals:
            continue
        if not source or (equals and not target):
            raise BadGlossary(_("Line %(line)d: expected “term” or “term = translation”.") % {"line": number})
        if max(len(source), len(target)) > MAX_TERM_CHARACTERS:
            raise BadGlossary(
                _("Line %(line)d: a term may have %(most)d characters.") % {"line": number, "most": MAX_TERM_CHARACTERS}
            )
        terms[source] = Term(source, target or source)
    if len(terms) > MAX_TERMS:
        raise BadGlossary(_("There may be %(most)d terms at most.") % {"most": MAX_TERMS})
    return list(terms.values())


class Glossary:
    def __init__(self, terms: Sequence[Term]) -> None:
        self._targets = {term.source: term.target for term in terms}
        longest_first = sorted(self._targets, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_as_pattern, longest_first)))

    def protect(self, text: str) -> tuple[str, dict[str, str]]:
        """`text` with markers for the terms in it, and what each marker stands for."""
        if not self._targets:
            return text, {}
        restored: dict[str, str] = {}
        taken = set(_MARKER.findall(text))
        free = (marker for number in count(1) if (marker := f"{{{{{number}}}}}") not in taken)

        def mark(match: re.Match[str]) -> str:
            marker = next(free)
            restored[marker] = self._targets[match[0]]
            return marker

        return self._pattern.sub(mark, text), restored


def restore(text: str, restored: dict[str, str]) -> str:
    return _MARKER.sub(lambda match: restored.get(match[0], match[0]), text)


def _as_pattern(source: str) -> str:
    before = f"(?<!{_LETTER})" if re.match(_LETTER, source) else ""
    after = f"(?!{_LETTER})" if re.match(_LETTER, source[-1]) else ""
    return before + re.escape(source) + after
