"""The tokens that a request used."""

from inference.api.edge.replies import CachedTokens, Usage
from inference.api.rows.generation import Generation


def count_usage(generation: Generation, rows_per_prompt: int = 1, *, completion_tokens: int | None = None) -> Usage:
    """So far. A prompt counts once, however many choices continue it."""
    prompt = sum(generation.prompt_tokens[::rows_per_prompt])
    completion = sum(generation.completion_tokens) if completion_tokens is None else completion_tokens
    cached = sum(generation.cached_tokens[::rows_per_prompt])
    return Usage(prompt, completion, prompt + completion, CachedTokens(cached))
