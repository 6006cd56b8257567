"""BurstGPT: a CSV of requests' lengths and times. The prompts are random words; --self-timed replays the times."""

from typing import Any

import msgspec

from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt

MODEL = "GPT-4"  # the other rows are of a model that answers much shorter
COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


class _Row(msgspec.Struct, frozen=True):
    timestamp: float
    asked: int
    answered: int


def load(source: Source) -> list[Prompt]:
    """The rows are chosen first: words are made for those alone, of more than a million in the whole file."""
    table = read_rows(source.path)
    if missing := [column for column in COLUMNS if table and column not in table[0]]:
        raise BadOption(f"--dataset-path: {source.path} has no column {missing[0]!r}")
    rows = [row for line in table if (row := _row(source, line)) is not None]
    if source.profile.self_timed:
        return [_prompt(source, row) for row in sorted(rows, key=lambda row: row.timestamp)[: source.count]]
    return source.filled([_prompt(source, row) for row in source.shuffled(rows)[: source.count]])


def _row(source: Source, line: dict[str, Any]) -> _Row | None:
    try:
        row = _Row(float(line[COLUMNS[0]]), int(line[COLUMNS[2]]), int(line[COLUMNS[3]]))
    except (TypeError, ValueError) as error:  # the former for a line that is too short
        raise BadOption(f"--dataset-path: {source.path}: {error}") from None
    return row if line[COLUMNS[1]] == MODEL and row.asked > 0 and row.answered > 0 else None


def _prompt(source: Source, row: _Row) -> Prompt:
    tokens = source.profile.input_len or row.asked
    text = source.vocabulary.words(tokens, source.draw)
    output = source.profile.output_len or row.answered
    return Prompt(text=text, output_tokens=output, prompt_tokens=tokens, timestamp=row.timestamp)
