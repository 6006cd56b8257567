"""Traces as Mooncake publishes them: JSON lines {timestamp (ms), input_length, output_length, hash_ids}.

A hash id stands for a block of tokens: equal ids are equal text, so that a prefix cache sees the trace's own reuse.
The fields may have other names, and the times another unit (--timed-trace-sec-multiplier).
"""

from random import Random
from typing import Any

import msgspec

from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt


class _Row(msgspec.Struct, frozen=True):
    timestamp: float
    asked: int
    answered: int
    blocks: list[Any]


def load(source: Source) -> list[Prompt]:
    """In the order of their times, the first `count`; text is made for those alone."""
    rows = [_row(source, number, values) for number, values in enumerate(read_rows(source.path), 1)]
    return [_prompt(source, row) for row in sorted(rows, key=lambda row: row.timestamp)[: source.count]]


def _row(source: Source, number: int, values: dict[str, Any]) -> _Row:
    profile = source.profile
    names = (
        profile.timed_trace_label_timestamp,
        profile.timed_trace_label_input_length,
        profile.timed_trace_label_output_length,
    )
    for name in names:
        if not isinstance(values.get(name), int | float):
            raise BadOption(f"--dataset-path: {source.path}, row {number}: {name} is no number")
    timestamp, asked, answered = (values[name] for name in names)
    blocks = values.get(profile.timed_trace_label_hash_ids) or []
    if not isinstance(blocks, list):
        raise BadOption(f"--dataset-path: {source.path}, row {number}: {profile.timed_trace_label_hash_ids} is no list")
    return _Row(timestamp * profile.timed_trace_sec_multiplier, max(1, int(asked)), max(1, int(answered)), blocks)


def _prompt(source: Source, row: _Row) -> Prompt:
    size, left = source.profile.timed_trace_hash_chunk, row.asked
    pieces = []
    for block in row.blocks:
        # Seeded by the id alone: the same block in any process and any run of this seed.
        draw = Random(f"{source.profile.seed}/block/{block}")
        pieces.append(source.vocabulary.words(min(size, left), draw))
        left -= min(size, left)
    pieces.append(source.vocabulary.words(left, source.draw))
    return Prompt(
        text="".join(pieces),
        output_tokens=source.profile.output_len or row.answered,
        prompt_tokens=row.asked,
        timestamp=row.timestamp,
    )
