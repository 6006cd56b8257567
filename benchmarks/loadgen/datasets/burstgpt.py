"""BurstGPT: a CSV of requests' lengths and times. The prompts are random words; --self-timed replays the times."""

from typing import Any

from benchmarks.loadgen.datasets.source import Source, read_rows
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt

MODEL = "GPT-4"  # the other rows are of a model that answers much shorter
COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


def load(source: Source) -> list[Prompt]:
    rows = read_rows(source.path)
    if missing := [column for column in COLUMNS if rows and column not in rows[0]]:
        raise BadOption(f"--dataset-path: {source.path} has no column {missing[0]!r}")
    prompts = [prompt for row in rows if (prompt := _prompt(source, row)) is not None]
    if source.profile.self_timed:
        return sorted(prompts, key=lambda prompt: prompt.timestamp or 0.0)[: source.count]
    return source.filled(source.shuffled(prompts))


def _prompt(source: Source, row: dict[str, Any]) -> Prompt | None:
    try:
        timestamp, asked, answered = float(row[COLUMNS[0]]), int(row[COLUMNS[2]]), int(row[COLUMNS[3]])
    except ValueError as error:
        raise BadOption(f"--dataset-path: {source.path}: {error}") from None
    if row[COLUMNS[1]] != MODEL or asked < 1 or answered < 1:
        return None
    tokens = source.profile.input_len or asked
    text = source.vocabulary.words(tokens, source.draw)
    output = source.profile.output_len or answered
    return Prompt(text=text, output_tokens=output, prompt_tokens=tokens, timestamp=timestamp)
