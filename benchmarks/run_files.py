"""The files through which a run's command tells how it stands, what it measured, and what went wrong."""

import json
import logging
from typing import Any

from benchmarks.loadgen import results
from benchmarks.loadgen.records import RunResult
from benchmarks.models import Run

log = logging.getLogger(__name__)

SHOWN_CHARACTERS = 2000


def read_result(run: Run) -> RunResult | None:
    """What the command measured, whole or partial; None when it left nothing that can be read."""
    try:
        return results.load(run.file("result"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        log.warning("the result of %s cannot be read: %s", run, error)
        return None


def read_progress(run: Run) -> dict[str, Any]:
    """The last whole line of progress; {} before the first."""
    try:
        lines = run.file("progress").read_bytes().splitlines()[-3:]
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        try:
            progress = json.loads(line)
        except ValueError:  # still being written, or no progress
            continue
        if isinstance(progress, dict) and progress.get("event") == "progress":
            return progress
    return {}


def read_words(run: Run) -> str:
    """The end of what the command wrote beside its progress."""
    try:
        return run.file("log").read_text(errors="replace").strip()[-SHOWN_CHARACTERS:]
    except FileNotFoundError:
        return ""


def remove_files(run: Run) -> None:
    for suffix in ("result", "progress", "log"):
        run.file(suffix).unlink(missing_ok=True)
