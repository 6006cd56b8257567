"""ShareGPT: a JSON list of {conversations: [{from, value}, ...]}; the answers tell how much to generate.

JSON lines of {messages: [{role, content}, ...]}, which api_bench_tools calls xiaomi, are read alike.
"""

from typing import Any

from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.exchange import Prompt

LEAST_TOKENS = 4  # of a prompt and of an answer, as everybody filters this data set
MOST_PROMPT_TOKENS = 1024
MOST_TOKENS = 2048


def load(source: Source) -> list[Prompt]:
    """The first turn of each conversation, or with --num-turns several joined by newlines."""
    prompts: list[Prompt] = []
    for row in source.shuffled(read_rows(source.path)):
        if len(prompts) == source.count:
            break
        prompt = _prompt(source, messages_of(row))
        if prompt is not None:
            prompts.append(prompt)
    return source.filled(prompts)


def messages_of(row: dict[str, Any]) -> list[str]:
    """The texts of a conversation, whatever its keys are called."""
    return [
        str(turn.get("value", turn.get("content", "")))
        for turn in row.get("conversations") or row.get("messages") or []
    ]


def _prompt(source: Source, messages: list[str]) -> Prompt | None:
    """None for a conversation that is too short or too long."""
    asked = 2 * source.profile.num_turns - 1
    if len(messages) <= asked:
        return None
    text = "\n".join(messages[:asked])
    prompt_tokens = source.vocabulary.count(text)
    wanted = source.profile.output_len or source.profile.sharegpt_output_len
    output_tokens = wanted or source.vocabulary.count(messages[asked])
    if prompt_tokens < LEAST_TOKENS or (wanted is None and output_tokens < LEAST_TOKENS):
        return None
    if prompt_tokens > MOST_PROMPT_TOKENS or prompt_tokens + output_tokens > MOST_TOKENS:
        return None
    return Prompt(text=text, output_tokens=output_tokens, prompt_tokens=prompt_tokens)
