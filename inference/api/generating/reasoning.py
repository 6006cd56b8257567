"""What a model thinks, apart from what it answers.

A prompt with thinking ends within the tag `<think>`, so the generated text begins with the rest of the
tag and goes on to `</think>`.
"""

from collections.abc import Sequence
from enum import Enum

from inference.text.tokenizer import get_tokenizer

THINKING_END = "</think>"


class Thinking(Enum):
    """How much of a thinking part the end of a prompt leaves to the model."""

    NONE = "none"
    ENDING = "ending"  # after `</think`: its last character
    BEGINNING = "beginning"  # after `<think`: that character and all the thoughts
    BEGUN = "begun"  # after `<think>`, or later: the rest of the thoughts


class ReasoningSplitter:
    """Splits one choice's text into thoughts and answer, piece by piece.

    The tags themselves and the blanks around them belong to neither. `tokens` counts the tokens of the
    thoughts, the closing tag included.
    """

    def __init__(self, thinking: Thinking) -> None:
        self.tokens = 0
        self._thinking = thinking in (Thinking.BEGINNING, Thinking.BEGUN)
        self._strips_bracket = thinking in (Thinking.BEGINNING, Thinking.ENDING)
        self._strips_blanks = True
        self._held = ""  # may belong to the tag
        self._tail = b""  # of the text so far: the tag may have begun in it

    def push(self, text: str, tokens: Sequence[int]) -> tuple[str, str]:
        """The new part of the thoughts and of the answer. `tokens` are those that `text` came from."""
        if self._thinking:
            self._count(tokens)
        if not text:
            return "", ""
        text = self._begun(self._held + text)
        self._held = ""
        if not self._thinking:
            return "", text
        thoughts, end, answer = text.partition(THINKING_END)
        if end:
            self._thinking, self._strips_blanks = False, True
            return thoughts.rstrip(), self._begun(answer)
        ready = len(text) - held_back(text, THINKING_END)
        self._held = text[ready:]
        return text[:ready], ""

    def finish(self) -> str:
        """What was held back of the thoughts, once no more text comes."""
        return self._held.rstrip()

    def _begun(self, text: str) -> str:
        """`text` without the rest of a tag and the blanks that a part begins with."""
        if self._strips_bracket and text:
            text, self._strips_bracket = text.removeprefix(">"), False
        if self._strips_blanks:
            text = text.lstrip()
            self._strips_blanks = not text
        return text

    def _count(self, tokens: Sequence[int]) -> None:
        table = get_tokenizer().table
        end = THINKING_END.encode()
        for token in tokens:
            self._tail = self._tail[-len(end) :] + table[token]
            self.tokens += 1
            if end in self._tail:
                return


def held_back(text: str, tag: str) -> int:
    """Length of the end of `text` that may begin `tag`, and of the blanks before it."""
    begun = next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
    before = text[: len(text) - begun]
    return begun + len(before) - len(before.rstrip())
