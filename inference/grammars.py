"""Grammars that a row's text must follow, compiled by llguidance, which is an optional dependency.

The web processes compile one to refuse it before anything is queued, the engine to draw by it. A
grammar is text in llguidance's variant of Lark, which takes JSON schemas inline (`%json {...}`).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from inference.bus.messages import END_OF_TEXT

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

REMEMBERED = 64  # compiled grammars: a client mostly sends the same one again


class GrammarError(ValueError):
    """A grammar cannot be used. The message is fit for the client."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary. May be called from several threads."""

    def __init__(self, vocabulary: Callable[[], Sequence[bytes]]) -> None:
        """`vocabulary` gives the bytes of each id, b"" for ids without; it is called once, when needed."""
        self._vocabulary = vocabulary
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled = lru_cache(REMEMBERED)(self._compile)

    def prepare(self) -> None:
        """Build what all grammars share, which takes some tenths of a second. Raises GrammarError."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _build_tokenizer(self._vocabulary())

    def compile(self, grammar: str) -> "LLMatcher":
        """A matcher at the beginning of `grammar`. Raises GrammarError."""
        return self._compiled(grammar).deep_copy()

    def _compile(self, grammar: str) -> "LLMatcher":
        self.prepare()
        from llguidance import LLMatcher

        assert self._tokenizer is not None
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        return matcher


class _Vocabulary:
    """What llguidance's TokenizerWrapper wants of a tokenizer."""

    eos_token_id = END_OF_TEXT
    bos_token_id = None
    special_token_ids = (END_OF_TEXT,)

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = [b"<|endoftext|>", *tokens[1:]]  # a special token needs a name

    def __call__(self, text: str | bytes) -> list[int]:
        """Some ids that spell `text`. It has to work, but only matters to those who skip ahead by a grammar."""
        data = text.encode() if isinstance(text, str) else text
        return [self.tokens.index(bytes([byte])) for byte in data]


def _build_tokenizer(tokens: Sequence[bytes]) -> "LLTokenizer":
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ModuleNotFoundError as error:
        raise GrammarError("structured output needs the package llguidance, which is not installed here") from error
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokens)), slices=LLTokenizer.json_slices())


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0]
