"""What one request may ask for: how many choices, how long a prompt, how many new tokens."""

from collections.abc import Sequence

from django.conf import settings

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.schemas import SamplingFields
from inference.api.generating.sampling import Defaults
from inference.bus.messages import END_OF_TEXT
from inference.text.tokenizer import get_tokenizer


def check_rows(rows: int, param: str) -> None:
    """Raises InvalidRequest when one request asks for more choices than the service runs for it."""
    limit = settings.RWKV.max_rows
    if rows > limit:
        raise InvalidRequest(
            f"{param}: expected at most {limit} choices in one request, got {rows}",
            param=param,
            code="too_many_choices",
        )


def encode_prompts(texts: Sequence[str], param: str) -> list[list[int]]:
    """Token ids of each text, checked. Raises InvalidRequest."""
    try:
        prompts = get_tokenizer().encode_batch(texts) if len(texts) > 1 else [get_tokenizer().encode(texts[0])]
    except ValueError as error:  # a lone surrogate
        raise InvalidRequest(f"{param}: {error}", param=param) from error
    return [check_prompt(prompt, param) for prompt in prompts]


def check_prompt(prompt: list[int], param: str) -> list[int]:
    """The prompt; an empty one continues the end of a text, which the model knows as a fresh start."""
    limit = settings.RWKV.max_prompt_tokens
    if len(prompt) > limit:
        raise InvalidRequest(
            f"{param}: expected at most {limit} tokens, got {len(prompt)}",
            param=param,
            code="context_length_exceeded",
        )
    return prompt or [END_OF_TEXT]


def new_tokens(fields: SamplingFields, defaults: Defaults) -> int:
    """How many tokens each choice may get. Raises InvalidRequest when more are asked for than allowed."""
    limit = settings.RWKV.max_new_tokens
    if fields.max_tokens is None:
        return min(defaults.max_tokens, limit)
    if fields.max_tokens > limit:
        raise InvalidRequest(
            f"max_tokens: expected at most {limit}, got {fields.max_tokens}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return fields.max_tokens
