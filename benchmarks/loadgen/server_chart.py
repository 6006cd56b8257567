"""What the server said of itself, as a chart over the run's time."""

from collections.abc import Sequence

from benchmarks.charts import Band, Series, line, table
from benchmarks.loadgen.records import ServerSample

TITLE = "The server's own figures"


def figures(samples: Sequence[ServerSample], bands: Sequence[Band]) -> list[str]:
    """Rows that run and wait, beside the tokens per second; nothing of a server that told nothing."""
    found = [
        Series("running", [(one.time, one.running) for one in samples]),
        Series("waiting", [(one.time, one.waiting) for one in samples]),
        Series("tokens/s", [(one.time, one.tokens_per_second) for one in samples], second_axis=True, dashed=True),
    ]
    series = [one for one in found if any(value is not None for _, value in one.points)]
    if not series:
        return []
    x_label = "seconds since the run's start"
    drawn = line(series, title=TITLE, x_label=x_label, y_label="requests", y2_label="tokens/s", bands=bands)
    twin = table.line(series, title=TITLE, x_label="second")
    return [table.figure(drawn, twin, label=TITLE, summary=f"{TITLE}: data")]
