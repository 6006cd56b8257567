"""Token counts where the server gave none: the model's tokenizer, else an estimate, always with the source's name."""

from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.records import RequestRecord, TokenSource

CountTokens = Callable[[str], int]

BYTES_PER_TOKEN = 4  # of UTF-8: about right for English, and within a factor of two for most languages


@cache
def rwkv_counter() -> CountTokens:
    """Counts as RWKV World models do. The first call reads the vocabulary, which takes half a second."""
    from inference.text.tokenizer import get_tokenizer

    encode = get_tokenizer().encode
    return lambda text: len(encode(text))


def fill_counts(record: RequestRecord, prompt: Prompt, count: CountTokens | None) -> None:
    """Fill the counts that the record lacks. `count` is the target's tokenizer.

    A prompt's own count by the data set stands for the tokenizer: it is made with one.
    """
    if record.prompt_tokens is None:
        record.prompt_tokens, record.prompt_tokens_source = _count_prompt(prompt, count)
    if record.output_tokens is None and record.text:
        tokens, source = _count_text(record.text, count)
        if source is TokenSource.ESTIMATE:
            tokens = max(tokens, len(record.chunks))  # no chunk has less than one
        record.output_tokens, record.output_tokens_source = tokens, source


def _count_prompt(prompt: Prompt, count: CountTokens | None) -> tuple[int, TokenSource]:
    if prompt.token_ids is not None:
        return len(prompt.token_ids), TokenSource.IDS
    if prompt.prompt_tokens is not None:
        return prompt.prompt_tokens, TokenSource.TOKENIZER
    if prompt.messages is not None:
        return _count_text("\n".join(_text_of(message) for message in prompt.messages), count)
    texts = ((one.text or "") + (one.suffix or "") for one in prompt.batch or (prompt,))
    return _count_text("".join(texts), count)


def _text_of(message: dict[str, Any]) -> str:
    """Of its parts the text alone: nobody here knows how many tokens an image or a sound is."""
    content = message.get("content") or ""
    if not isinstance(content, list):
        return str(content)
    return "\n".join(str(part.get("text") or "") for part in content)


def _count_text(text: str, count: CountTokens | None) -> tuple[int, TokenSource]:
    if count is not None:
        return count(text), TokenSource.TOKENIZER
    size = len(text.encode(errors="replace"))
    return -(-size // BYTES_PER_TOKEN), TokenSource.ESTIMATE
