"""The figures of each turn of conversations, as a table."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from benchmarks.commands.tables import number
from benchmarks.loadgen.records import Phase, RequestRecord
from benchmarks.loadgen.request_metrics import e2el, tpot, ttft

COLUMNS: tuple[tuple[str, Callable[[RequestRecord], float | None], float], ...] = (  # title, value, factor
    ("tokens in", lambda record: record.prompt_tokens, 1),
    ("out", lambda record: record.output_tokens, 1),
    ("TTFT ms", ttft, 1000),
    ("TPOT ms", tpot, 1000),
    ("E2EL ms", e2el, 1000),
)


def table(records: Iterable[RequestRecord]) -> str:
    """A line for each turn, the first is 0: how many were answered, and means of those. The warm-up is left out."""
    turns: dict[int, list[RequestRecord]] = {}
    for record in records:
        if record.phase is not Phase.WARMUP:
            turns.setdefault(record.turn, []).append(record)
    head = f"{'turn':<8}{'answered':>12}" + "".join(f"{title:>12}" for title, *_ in COLUMNS)
    return "".join(f"{line}\n" for line in (head, *(_line(turn, turns[turn]) for turn in sorted(turns))))


def _line(turn: int, records: Sequence[RequestRecord]) -> str:
    answered = [record for record in records if record.succeeded]
    cells = [f"{len(answered)}/{len(records)}"]
    for _, value, factor in COLUMNS:
        known = [found for record in answered if (found := value(record)) is not None]
        cells.append(number(factor * fmean(known) if known else None))
    return f"{turn:<8}" + "".join(f"{cell:>12}" for cell in cells)
