"""Data sets of the Hugging Face hub as files that were fetched before: JSON, JSON lines, CSV, or parquet with pyarrow.

The prompt's column is known by its name; --hf-prompt-field names another.
"""

from typing import Any

from benchmarks.loadgen.datasets.sharegpt import messages_of
from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt

PROMPT_FIELDS = ("prompt", "question", "instruction", "problem", "turns", "conversations", "messages", "text")
ANSWER_FIELDS = ("response", "answer", "output", "completion", "solution")
DEFAULT_OUTPUT_TOKENS = 256


def load(source: Source) -> list[Prompt]:
    rows = read_rows(source.path)
    if not rows:
        return []
    field = source.profile.hf_prompt_field or next((name for name in PROMPT_FIELDS if name in rows[0]), "")
    if field not in rows[0]:
        wanted = field or f"one of {', '.join(PROMPT_FIELDS)}"
        raise BadOption(f"--hf-prompt-field: the rows of {source.path} have {', '.join(rows[0])}, but not {wanted}")
    prompts = [_prompt(source, row, field) for row in source.shuffled(rows)[: source.count]]
    return source.filled([prompt for prompt in prompts if prompt.text or prompt.messages])


def _prompt(source: Source, row: dict[str, Any], field: str) -> Prompt:
    """Of a row without the field, a prompt without text."""
    profile, value = source.profile, row.get(field) or []
    answer = next((row[name] for name in ANSWER_FIELDS if isinstance(row.get(name), str) and row[name]), None)
    expected = source.vocabulary.count(answer) if answer else DEFAULT_OUTPUT_TOKENS
    output = profile.output_len or profile.hf_output_len or expected
    if field == "messages":
        # The last turns of the assistant are what the model is to write.
        last = max((n for n, message in enumerate(value) if message.get("role") == "user"), default=-1)
        return Prompt(messages=value[: last + 1], output_tokens=output)
    if field == "conversations":
        text = next(iter(messages_of(row)), "")
    elif isinstance(value, list):
        text = str(value[0]) if value else ""
    else:
        text = (
            "\n".join(str(part) for part in (value, row.get("input")) if part) if field == "instruction" else str(value)
        )
    return Prompt(text=text, output_tokens=output, prompt_tokens=source.vocabulary.count(text))
