"""The tokens of a run as charts: how long prompts and answers are, and how many come in each second."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.charts import Band, Series, histogram, line, table
from benchmarks.loadgen.records import Phase, RequestRecord

LENGTHS = (("prompt_tokens", "Length of the prompts"), ("output_tokens", "Length of the answers"))


def lengths(records: Sequence[RequestRecord]) -> list[str]:
    """Figures of the lengths, of the requests behind the statistics: measured ones that succeeded."""
    measured = [one for one in records if one.phase is Phase.MEASURE and one.succeeded]
    return [_histogram(title, found) for field, title in LENGTHS if (found := _known(measured, field))]


def over_time(buckets: Sequence[Mapping[str, Any]], bands: Sequence[Band]) -> str:
    """Output tokens in each second beside the requests in flight. `buckets` are of `metrics.time_buckets`."""
    title, x_label = "Output tokens and requests in flight", "seconds since the run's start"
    series = [
        Series("output tokens", [(one["second"], one["tokens"]) for one in buckets]),
        Series("in flight", [(one["second"], one["in_flight"]) for one in buckets], second_axis=True, dashed=True),
    ]
    y_label = "tokens in this second"
    drawn = line(series, title=title, x_label=x_label, y_label=y_label, y2_label="requests in flight", bands=bands)
    return table.figure(drawn, table.line(series, title=title, x_label="second"), label=title, summary=f"{title}: data")


def _histogram(title: str, values: Sequence[int]) -> str:
    drawn = histogram(values, title=title, x_label="tokens", y_label="requests", whole=True)
    twin = table.histogram(values, title=title, x_label="tokens", y_label="requests", whole=True)
    return table.figure(drawn, twin, label=title, summary=f"{title}: data")


def _known(records: Sequence[RequestRecord], field: str) -> list[int]:
    return [value for one in records if (value := getattr(one, field)) is not None]
