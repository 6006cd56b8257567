"""Traces as Mooncake publishes them: JSON lines {timestamp (ms), input_length, output_length, hash_ids}.

A hash id stands for a block of tokens: equal ids are equal text, so that a prefix cache sees the trace's own reuse.
"""

from random import Random
from typing import Any

from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt

NUMBERS = ("timestamp", "input_length", "output_length")


def load(source: Source) -> list[Prompt]:
    """In the order of their times, the first `count`."""
    prompts = [_prompt(source, number, row) for number, row in enumerate(read_rows(source.path), 1)]
    return sorted(prompts, key=lambda prompt: prompt.timestamp or 0.0)[: source.count]


def _prompt(source: Source, number: int, row: dict[str, Any]) -> Prompt:
    for name in NUMBERS:
        if not isinstance(row.get(name), int | float):
            raise BadOption(f"--dataset-path: {source.path}, row {number}: {name} is no number")
    size = source.profile.timed_trace_hash_chunk
    left = max(1, int(row["input_length"]))
    pieces = []
    for block in row.get("hash_ids") or []:
        # Seeded by the id alone: the same block in any process and any run of this seed.
        draw = Random(f"{source.profile.seed}/block/{block}")
        pieces.append(source.vocabulary.words(min(size, left), draw))
        left -= min(size, left)
    pieces.append(source.vocabulary.words(left, source.draw))
    return Prompt(
        text="".join(pieces),
        output_tokens=source.profile.output_len or max(1, int(row["output_length"])),
        prompt_tokens=max(1, int(row["input_length"])),
        timestamp=row["timestamp"] / 1000,
    )
