"""Log probabilities in the two shapes of the OpenAI API."""

import codecs
from collections.abc import Sequence

from inference.api.edge.replies import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from inference.bus.messages import TokenLogprobs
from inference.text.tokenizer import get_tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


def chat_logprobs(tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                *_candidate(token, entry.logprob), [TopLogprob(*_candidate(*candidate)) for candidate in entry.top]
            )
            for token, entry in zip(tokens, logprobs, strict=True)
        ]
    )


class CompletionLogprobsWriter:
    """Keeps the place in one choice's text from one frame to the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def write(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """The entries of the next tokens. The first token of a text has none (null)."""
        tokenizer = get_tokenizer()
        written = CompletionLogprobs([], [], [], [])
        for token, entry in zip(tokens, logprobs, strict=True):
            name = tokenizer.token_text(token)
            written.tokens.append(name)
            written.text_offset.append(self._characters)
            written.token_logprobs.append(_finite(entry.logprob) if entry else None)
            written.top_logprobs.append(_top(name, entry) if entry else None)
            self._characters += len(self._decoder.decode(tokenizer.token_bytes(token)))
        return written


def _top(name: str, entry: TokenLogprobs) -> dict[str, float]:
    """The best candidates, and the token itself: one that was drawn greedily equals the best, to the bit."""
    text = get_tokenizer().token_text
    return {text(token): _finite(logprob) for token, logprob in entry.top} | {name: _finite(entry.logprob)}


def _candidate(token: int, logprob: float) -> tuple[str, float, list[int]]:
    tokenizer = get_tokenizer()
    return tokenizer.token_text(token), _finite(logprob), list(tokenizer.token_bytes(token))


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
