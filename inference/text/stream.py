r"""From a row's token ids to its text, piece by piece, up to a stop string.

Everything happens on bytes. UTF-8 is self-synchronising, so a stop string is found among the bytes
exactly where it is found in the text, whichever tokens it begins and ends in.

Which stop wins: the one that is complete first; of several that are complete with the same byte,
the longest. Both are properties of the text alone, so the answer does not depend on how the text
was cut into tokens or pushes, and no stop has to wait for what may follow it.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from inference.text.tokenizer import Tokenizer, surrogate_error

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Piece(NamedTuple):
    text: str
    tokens: int  # how many tokens, from the row's first on, it takes to hold all text released so far
    stop: str | None = None  # the stop string that ended the text


class TextStream:
    """The text of one row.

    Bytes of an unfinished character stay back until the rest has come, and so does text that may
    be the beginning of a stop string. Bytes that cannot be UTF-8 become U+FFFD. The stop itself is
    part of the text only with `include_stop`.

    Raises ValueError if a stop string is empty or has no UTF-8 form.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), include_stop: bool = False) -> None:
        self.stop: str | None = None
        self.visible_tokens = 0
        self._table = tokenizer.table
        self._stops = [_stop_bytes(stop) for stop in stop_strings]
        self._include_stop = include_stop
        self._decoder = _new_decoder("replace")
        self._held = b""  # may be the beginning of a stop string
        self._received = 0  # bytes
        self._hidden: deque[int] = deque()  # where each token begins of which no byte is released yet

    def push(self, tokens: Sequence[int]) -> Piece:
        """Add generated ids (0 <= id < VOCAB_SIZE). After a stop nothing more is released."""
        if self.stop is not None:
            return Piece("", self.visible_tokens, self.stop)
        data = self._receive(tokens)
        if self._stops:
            data = self._held + data
            end, size = self._find_stop(data)
            if size:
                return self._end_at(data, end, size)
            ready = len(data) - self._longest_stop_beginning(data)
            data, self._held = data[:ready], data[ready:]
        text = self._decoder.decode(data)
        self._show(self._received - len(self._held) - len(self._decoder.getstate()[0]))
        return Piece(text, self.visible_tokens)

    def finish(self) -> str:
        """What was held back, once no more tokens come; an unfinished character becomes one U+FFFD."""
        held, self._held = self._held, b""
        if self.stop is None:
            self._show(self._received)
        return self._decoder.decode(held, final=True)

    def _receive(self, tokens: Sequence[int]) -> bytes:
        pieces = [self._table[token] for token in tokens]
        for piece in pieces:
            self._hidden.append(self._received)
            self._received += len(piece)
        return b"".join(pieces)

    def _show(self, released: int) -> None:
        """Count the tokens that begin within the first `released` bytes."""
        hidden = self._hidden
        while hidden and hidden[0] < released:
            hidden.popleft()
            self.visible_tokens += 1

    def _find_stop(self, data: bytes) -> tuple[int, int]:
        """End and length of the stop that is complete first, (0, 0) if there is none."""
        ends = [(start + len(stop), -len(stop)) for stop in self._stops if (start := data.find(stop)) >= 0]
        end, size = min(ends, default=(0, 0))
        return end, -size

    def _longest_stop_beginning(self, data: bytes) -> int:
        """Length of the longest end of `data` with which a stop string begins."""
        longest = 0
        for stop in self._stops:
            start = data.find(stop[0], max(0, len(data) - len(stop) + 1))
            while start >= 0 and not stop.startswith(data[start:]):
                start = data.find(stop[0], start + 1)
            if start >= 0:
                longest = max(longest, len(data) - start)
        return longest

    def _end_at(self, data: bytes, end: int, size: int) -> Piece:
        kept = data[: end if self._include_stop else end - size]
        self.stop = data[end - size : end].decode("utf-8")
        self._show(self._received - len(data) + len(kept))
        self._held = b""
        return Piece(self._decoder.decode(kept, final=True), self.visible_tokens, self.stop)


def _stop_bytes(stop: str) -> bytes:
    if not stop:
        raise ValueError("stop: a stop string must not be empty")
    try:
        return stop.encode("utf-8")
    except UnicodeEncodeError as error:
        raise surrogate_error("stop", error) from error
