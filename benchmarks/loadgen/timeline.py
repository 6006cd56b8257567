"""The requests of a run as lanes of a timeline: waiting, first token, decode, and the gaps that a reader notices."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.charts import Band, Lane, Stretch, lanes, table
from benchmarks.loadgen.metrics import STALL_MS
from benchmarks.loadgen.records import RequestRecord
from benchmarks.loadgen.request_metrics import last_arrival

MOST_LANES = 300
MOST_GAPS = 20  # of one request: its longest
LONG_GAP_MS = 100.0  # between two chunks: text that comes more slowly stutters
LATE, WAIT, DECODE, LONG_GAP, STALL = range(5)
SHORT = 0.04  # of the run's length
LEAST_LATE_SECONDS = 0.001  # a send that is later than this by its schedule is drawn as late


def figures(records: Sequence[RequestRecord], summary: Mapping[str, Any], *, of: int | None = None) -> list[str]:
    """The timeline with its table; where requests are short beside the run, also each from its own begin.

    Empty where nothing was sent. `of` is how many requests `records` were chosen from.
    """
    stall_ms = (summary.get("stalls") or {}).get("threshold_ms") or STALL_MS
    sent = sorted((one for one in records if one.sent is not None), key=_begin)
    if not sent:
        return []
    shown = [lane(one, stall_ms) for one in evenly(sent, MOST_LANES)]
    total = max(of or 0, len(records))
    sample = f": {len(shown):,} of {total:,}, evenly chosen" if len(shown) < total else ""
    window = summary.get("window")
    bands = [Band(window[0], window[1], "measured")] if window else []
    drawn = [_figure(shown, stall_ms, f"Timeline of the requests{sample}", "seconds since the run's start", bands)]
    if _are_short(shown):
        own = [_from_zero(one) for one in shown]
        drawn.append(_figure(own, stall_ms, f"Each from its own begin{sample}", "seconds since the request's begin"))
    return drawn


def _figure(shown: Sequence[Lane], stall_ms: float, title: str, x_label: str, bands: Sequence[Band] = ()) -> str:
    kinds = (
        "waiting to be sent",
        "waiting for the first token",
        "decode",
        f"gap over {min(LONG_GAP_MS, stall_ms):g} ms",
        f"stall over {stall_ms:g} ms",
    )
    words = f"{title}. A line for each in the order of their begin: {', '.join(kinds)}"
    names = {"title": title, "x_label": x_label, "y_label": "request", "description": words}
    drawn = lanes(shown, kinds, bands=bands, **names)
    twin = table.lanes(shown, kinds, title=title, x_label="request")
    return table.figure(drawn, twin, label=title, summary=f"{title}: data")


def _are_short(shown: Sequence[Lane]) -> bool:
    """Whether half of the lanes are so short beside the whole that nothing is seen in them."""
    ends = [(lane.stretches[0].start, max(one.end for one in lane.stretches)) for lane in shown]
    whole = max(end for _, end in ends) - min(start for start, _ in ends)
    return median(end - start for start, end in ends) < SHORT * whole


def _from_zero(lane: Lane) -> Lane:
    begin = lane.stretches[0].start
    moved = [Stretch(one.kind, one.start - begin, one.end - begin) for one in lane.stretches]
    return Lane(lane.name, moved, lane.note, lane.failed)


def evenly(ordered: Sequence[RequestRecord], most: int) -> list[RequestRecord]:
    """At most so many of them, at equal distances, from the first to the last."""
    if len(ordered) <= most:
        return list(ordered)
    return [ordered[place * (len(ordered) - 1) // (most - 1)] for place in range(most)]


def lane(record: RequestRecord, stall_ms: float = STALL_MS) -> Lane:
    """Of a request that was sent. An answer that was not streamed is one wait."""
    sent = record.sent or 0.0
    stretches = []
    if sent - _begin(record) > LEAST_LATE_SECONDS:
        stretches.append(Stretch(LATE, _begin(record), sent))
    end = record.done if record.done is not None else last_arrival(record)
    if record.chunks:
        first, last = record.chunks[0].time, record.chunks[-1].time
        stretches += [Stretch(WAIT, sent, first), Stretch(DECODE, first, last), *_gaps(record, stall_ms)]
    else:
        stretches.append(Stretch(WAIT, sent, sent if end is None else end))
    user = "" if record.user is None else f" of user {record.user}"
    return Lane(f"{record.index}{user}", stretches, note=_note(record), failed=not record.succeeded)


def _gaps(record: RequestRecord, stall_ms: float) -> list[Stretch]:
    """The long waits for the next chunk of the same choice."""
    times: dict[int, list[float]] = defaultdict(list)
    for chunk in record.chunks:
        times[chunk.choice].append(chunk.time)
    gaps = sorted((gap for stream in times.values() for gap in pairwise(stream)), key=lambda gap: gap[0] - gap[1])
    return [
        Stretch(STALL if 1000 * (end - start) > stall_ms else LONG_GAP, start, end)
        for start, end in gaps[:MOST_GAPS]
        if 1000 * (end - start) > min(LONG_GAP_MS, stall_ms)
    ]


def _begin(record: RequestRecord) -> float:
    """When a user wanted it: by the schedule where there is one."""
    return (record.sent or 0.0) if record.intended is None else record.intended


def _note(record: RequestRecord) -> str:
    if record.error:
        return str(record.error)
    tokens = "" if record.output_tokens is None else f"{record.output_tokens:,} tokens"
    return ", ".join(part for part in (tokens, record.finish_reason or "") if part)
