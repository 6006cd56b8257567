"""One's own prompts: JSON lines {"prompt": text} or {"messages": [...]}, if wanted with "suffix", "output_tokens" and
"timestamp" (seconds).
"""

from typing import Any

from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt


def load(source: Source) -> list[Prompt]:
    rows = read_rows(source.path)
    numbered = list(enumerate(rows, 1))
    if source.profile.self_timed:
        prompts = [_prompt(source, number, row) for number, row in numbered]
        return sorted(prompts, key=lambda prompt: prompt.timestamp or 0.0)[: source.count]
    return source.filled([_prompt(source, number, row) for number, row in source.shuffled(numbered)[: source.count]])


def _prompt(source: Source, number: int, row: dict[str, Any]) -> Prompt:
    where = f"--dataset-path: {source.path}, row {number}"
    text, messages = row.get("prompt"), row.get("messages")
    if (text is None) == (messages is None):
        raise BadOption(f"{where} needs either prompt or messages")
    if text is not None and not isinstance(text, str):
        raise BadOption(f"{where}: prompt is no text")
    if messages is not None and not isinstance(messages, list):
        raise BadOption(f"{where}: messages is no list")
    profile = source.profile
    output = profile.output_len or profile.custom_output_len
    if output == -1:
        output = row.get("output_tokens", 0)
        if not isinstance(output, int) or output < 1:
            raise BadOption(f"{where} has no output_tokens, which --custom-output-len -1 takes from each row")
    return Prompt(
        text=text,
        messages=messages,
        suffix=row.get("suffix"),
        output_tokens=output,
        prompt_tokens=source.vocabulary.count(text) if text is not None else None,
        timestamp=row.get("timestamp"),
    )
