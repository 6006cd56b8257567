"""How a run stands, while it goes on: a line that is written over, plain lines, or JSON for another program."""

import json
import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from benchmarks.loadgen.watch import Live

Report = Callable[[Live], None]

BAR_WIDTH = 24
LINE_SECONDS = 5.0
JSON_SECONDS = 0.5


def choose(stdout: TextIO, *, as_json: bool, silent: bool) -> Report:
    """Words go to standard error, so that standard output holds results alone."""
    if as_json:
        return _every(JSON_SECONDS, lambda live: _write_json(stdout, live))
    if silent:
        return lambda live: None
    if sys.stderr.isatty():
        return _write_over
    return _every(LINE_SECONDS, lambda live: sys.stderr.write(words(live) + "\n"))


def finish() -> None:
    """Leave the line that was written over."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")


def words(live: Live) -> str:
    """One line: how far it is, what runs, tokens so far and TTFT so far."""
    if live.state != "running":
        return live.state
    parts = [f"{live.elapsed:6.1f} s", f"{live.sent} sent", f"{live.in_flight} running", f"{live.done} done"]
    if live.failed:
        parts.append(f"{live.failed} failed")
    parts.append(f"{live.output_tokens} tokens")
    if live.ttft_p50_ms is not None:
        parts.append(f"TTFT p50 {live.ttft_p50_ms:.0f} ms")
    return ", ".join(parts)


def share(live: Live) -> float | None:
    """How much is done, 0 to 1: by requests or by time, whichever is further. None where neither has an end."""
    shares = []
    if live.requests:
        shares.append((live.done + live.failed) / live.requests)
    if live.duration:
        shares.append(live.elapsed / live.duration)
    return min(1.0, max(shares)) if shares else None


def _write_over(live: Live) -> None:
    done = share(live)
    bar = ""
    if done is not None:
        filled = round(BAR_WIDTH * done)
        bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:4.0%} "
    sys.stderr.write(f"\r{bar}{words(live)}\x1b[K")
    sys.stderr.flush()


def _write_json(stdout: TextIO, live: Live) -> None:
    stdout.write(json.dumps({"event": "progress", **msgspec.to_builtins(live)}) + "\n")
    stdout.flush()


def _every(seconds: float, write: Callable[[Live], object]) -> Report:
    """At most so often, but each new state at once."""
    last = -seconds
    state = ""

    def report(live: Live) -> None:
        nonlocal last, state
        now = time.monotonic()
        if live.state != state or now - last >= seconds:
            last, state = now, live.state
            write(live)

    return report
