"""Texts cut where it hurts a translation least."""

import re
from collections.abc import Iterable

from inference.text.tokenizer import get_tokenizer

# Between paragraphs, lines, sentences, words. What separates two parts stays at the end of the first.
_BORDERS = [
    re.compile(r"(?<=\n\n)(?=[^\n])|(?<=\n[ \t]\n)(?=\S)"),
    re.compile(r"(?<=\n)(?=[^\n])"),
    re.compile(r"(?<=[.!?…][ \t])(?=\S)|(?<=[。！？；])"),
    re.compile(r"(?<=\s)(?=\S)|(?<=[，、])"),
]
_MOST_TOKENS_OF_A_CHARACTER = 4  # its UTF-8 bytes
# What pages mark their own markup with: {{1}}, {0}, [[2]], <b3>, </b3>, <b3/>, %s, %1$s.
_PLACEHOLDER = r"\{\{[^{}]*\}\}|\{\d+\}|\[\[\d+\]\]|</?[a-z]+\d+\s*/?>|%(?:\d+\$)?[sd]"


def split_text(text: str, limit: int) -> list[str]:
    """Pieces of at most `limit` tokens (>= 4) which, joined, are the text again."""
    return _split(text, limit, _BORDERS)


def find_placeholders(text: str, given: Iterable[str]) -> list[str]:
    """The placeholders in `text`, in order: the usual ones, and any of `given`."""
    return _placeholder_pattern(text, given).findall(text)


def split_at_placeholders(text: str, given: Iterable[str]) -> list[str]:
    """The parts between placeholders (even indices) and the placeholders themselves (odd ones)."""
    return re.split(f"({_placeholder_pattern(text, given).pattern})", text)


def _placeholder_pattern(text: str, given: Iterable[str]) -> re.Pattern[str]:
    """Of `given` those in `text` alone: a pattern of all of them would be tried at every character."""
    present = [placeholder for placeholder in given if placeholder and placeholder in text]
    escaped = [re.escape(placeholder) for placeholder in sorted(present, key=len, reverse=True)]
    return re.compile("|".join([*escaped, _PLACEHOLDER]))


def _split(text: str, limit: int, borders: list[re.Pattern[str]]) -> list[str]:
    if _size(text) <= limit:
        return [text]
    if not borders:
        width = limit // _MOST_TOKENS_OF_A_CHARACTER
        return [text[start : start + width] for start in range(0, len(text), width)]
    pieces: list[str] = []
    room = 0  # tokens that still fit into the last piece
    for part in borders[0].split(text):
        size = _size(part)
        if size <= room:
            pieces[-1] += part
            room -= size
        elif size <= limit:
            pieces.append(part)
            room = limit - size
        else:
            pieces += _split(part, limit, borders[1:])
            room = 0
    return pieces


def _size(text: str) -> int:
    return len(get_tokenizer().encode(text))
