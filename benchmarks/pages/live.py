"""A run while it is open: what its command said last, and how far it is."""

from typing import Any

from benchmarks.models import Run, Status
from benchmarks.pages.words import number, seconds

HEADERS = ["Sent", "Done", "Failed", "In flight", "Requests/s", "Output tokens/s", "TTFT median, ms"]


def context(run: Run) -> dict[str, Any]:
    """For templates/admin/benchmarks/run/live.html. The command's lines are `benchmarks.loadgen.watch.Live`."""
    said = run.progress
    ended, elapsed = said.get("done", 0) + said.get("failed", 0), said.get("elapsed") or 0.0
    whole, so_far = (said.get("requests"), ended) if said.get("requests") else (said.get("duration"), elapsed)
    return {
        "run": run,
        "waits": run.status == Status.QUEUED,
        "ahead": Run.objects.open().filter(pk__lt=run.pk).count(),
        "state": said.get("state", "starting"),
        "share": round(min(1.0, so_far / whole), 3) if whole else None,
        "left": seconds(elapsed * (whole - so_far) / so_far) if whole and so_far else "",
        "elapsed": seconds(elapsed),
        "figures": {"headers": HEADERS, "rows": [_figures(said, ended, elapsed)] if elapsed else []},
    }


def _figures(said: dict[str, Any], ended: int, elapsed: float) -> list[str]:
    counts = [number(said.get(name, 0)) for name in ("sent", "done", "failed", "in_flight")]
    rates = [number(ended / elapsed, 2), number(said.get("output_tokens", 0) / elapsed)]
    return [*counts, *rates, number(said.get("ttft_p50_ms"))]
