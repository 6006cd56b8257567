"""From a run's folder into its rows."""

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.evals.evaluation import Item
from benchmarks.evals.models import EvalItem, EvalRun
from benchmarks.evals.summary import SUMMARY

ROWS = 1000  # of one INSERT

# Columns of a run that its summary has under the same name, and those from its settings.
FIGURES = ("n", "documents", "acc", "acc_stderr", "ppl", "ppl_stderr", "bits_per_byte", "documents_per_second")
SETTINGS = ("model", "fingerprint", "backend", "device", "dtype")


def store_items(run: EvalRun, items: Sequence[Item]) -> None:
    """Add items; those that are there already stay as they are."""
    rows = [EvalItem(run=run, **_without_nul(msgspec.structs.asdict(item))) for item in items]
    EvalItem.objects.bulk_create(rows, batch_size=ROWS, ignore_conflicts=True)


def store_summary(run: EvalRun) -> None:
    """Put the folder's summary, whole or partial, into the row; without one, the row stays as it is."""
    try:
        summary = msgspec.json.decode((run.folder / SUMMARY).read_bytes())
    except FileNotFoundError:
        return
    settings = summary.get("settings", {})
    values = {name: summary[name] for name in FIGURES if summary.get(name) is not None}
    # A server that is not ours may say anything of itself.
    values |= {name: settings.get(name, "")[: EvalRun._meta.get_field(name).max_length] for name in SETTINGS}
    run.summary = _without_nul(summary)
    for name, value in values.items():
        setattr(run, name, value)
    run.save(update_fields=["summary", *values])


def _without_nul(value: Any) -> Any:
    """The value with U+0000, which PostgreSQL cannot hold, shown as the symbol for it."""
    match value:
        case str():
            return value.replace("\0", "\u2400")
        case dict():
            return {_without_nul(name): _without_nul(entry) for name, entry in value.items()}
        case list():
            return [_without_nul(entry) for entry in value]
    return value
