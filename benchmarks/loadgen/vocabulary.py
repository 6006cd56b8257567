"""Text of a wanted length, and the length of text, in tokens of the RWKV World vocabulary or by estimate."""

import re
from functools import cache
from random import Random
from typing import Protocol

CHARACTERS_PER_TOKEN = 4
_WORD = re.compile(r" [a-z]{3,}")
# At least as long as an estimated token, so that as many as are wanted can be cut to the wanted length.
_PLAIN_WORDS = (" time", " hand", " city", " work", " home", " side", " line", " area", " game", " book")


class Vocabulary(Protocol):
    name: str

    def count(self, text: str) -> int: ...

    def words(self, count: int, draw: Random) -> str:
        """Random words that are `count` tokens together."""
        ...


class WorldVocabulary:
    """Words are single tokens with their space in front, which stay apart when the text is encoded again."""

    name = "rwkv"

    def __init__(self) -> None:
        # Half a second and some memory, so only where it is used.
        from inference.text.tokenizer import get_tokenizer

        self._tokenizer = get_tokenizer()
        texts = (piece.decode(errors="replace") for piece in self._tokenizer.table)
        self._words = [text for text in texts if _WORD.fullmatch(text)]

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def words(self, count: int, draw: Random) -> str:
        return "".join(draw.choices(self._words, k=count))


class NoVocabulary:
    """For servers whose tokenizer is not at hand: lengths are estimates from the number of characters."""

    name = "none"

    def count(self, text: str) -> int:
        return max(1, round(len(text) / CHARACTERS_PER_TOKEN)) if text else 0

    def words(self, count: int, draw: Random) -> str:
        length = count * CHARACTERS_PER_TOKEN
        return "".join(draw.choices(_PLAIN_WORDS, k=count))[:length]


@cache
def get_vocabulary(name: str) -> Vocabulary:
    """`name` is "rwkv" or "none"."""
    return WorldVocabulary() if name == WorldVocabulary.name else NoVocabulary()
