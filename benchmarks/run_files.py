"""The files through which a run's command tells how it stands, what it measured, and what went wrong."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from benchmarks.loadgen import results
from benchmarks.loadgen.records import RunResult
from benchmarks.models import Run

log = logging.getLogger(__name__)

SHOWN_CHARACTERS = 2000
TAIL_BYTES = 8192  # of the progress, which grows for as long as the run takes; a line has a few hundred


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
    for line in reversed(_tail(run.file("progress")).splitlines()):
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
    for suffix in ("result", "progress", "log", "interrupted"):
        run.file(suffix).unlink(missing_ok=True)


def _tail(path: Path) -> bytes:
    """Its last TAIL_BYTES, whose first line may lack its beginning."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""
