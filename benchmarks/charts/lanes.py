"""A timeline: one lane for each request, from top to bottom, with the stretches of its life in their colours."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.charts.data import Band, Lane
from benchmarks.charts.scale import Scale, number
from benchmarks.charts.style import LANE_KINDS, MARK
from benchmarks.charts.svg import LEFT, LEGEND_ROW, RIGHT, TOP, WIDTH, Frame, element, flow, text, tooltip

LANE_HEIGHT = 14.0  # px of a lane, where there are few
MOST_HEIGHT = 720.0  # of all of them
LEAST_HEIGHT = 90.0
BELOW = 48  # px for the x axis and its label
NAMED_LANES = 12
NARROWEST = 0.7  # px: a stretch that is shorter would not be seen
FAILED = "failed"


@dataclass(frozen=True)
class _Lanes(Scale):
    """The first lane on top; only some are named."""

    names: tuple[str, ...] = ()

    def ticks(self, wanted: int = NAMED_LANES) -> list[tuple[float, str]]:
        every = max(1, -(-len(self.names) // wanted))
        return [(place + 0.5, self.names[place]) for place in range(0, len(self.names), every)]


def lanes(
    rows: Sequence[Lane],
    kinds: Sequence[str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    bands: Sequence[Band] = (),
    description: str = "",
) -> str:
    """`kinds` name the stretches, five at most, and are the legend."""
    legend, above = _legend([*kinds, FAILED] if any(lane.failed for lane in rows) else kinds)
    top = TOP + above
    height = min(max(LANE_HEIGHT * len(rows), LEAST_HEIGHT), MOST_HEIGHT)
    times = [time for lane in rows for one in lane.stretches for time in (one.start, one.end)]
    first, last = min(times, default=0.0), max(times, default=0.0)
    last = last if last > first else first + 1.0
    frame = Frame(
        title=title,
        x=Scale("linear", first, last, LEFT, WIDTH - RIGHT),  # not to round values: the lanes are narrow enough
        # `start` is where the x axis is, as in every other chart: below.
        y=_Lanes("linear", max(len(rows), 1), 0, top + height, top, names=tuple(lane.name for lane in rows)),
        x_label=x_label,
        y_label=y_label,
        description=description or f"{len(rows)} of {y_label} over {x_label}: " + ", ".join(kinds),
        height=top + height + BELOW,
    )
    frame.bands(bands)
    frame.body.extend(legend)
    thick = min(LANE_HEIGHT, height / max(len(rows), 1)) * 0.8
    for place, lane in enumerate(rows):
        frame.body.append(_lane(frame, lane, kinds, frame.y.place(place + 0.5), thick))
    return frame.render()


def _lane(frame: Frame, lane: Lane, kinds: Sequence[str], middle: float, thick: float) -> str:
    parts = [tooltip(_words(lane, kinds))]
    for one in lane.stretches:
        left, right = frame.x.place(one.start), frame.x.place(one.end)
        parts.append(
            element(
                "rect",
                x=left,
                y=middle - thick / 2,
                width=max(right - left, NARROWEST),
                height=thick,
                fill=LANE_KINDS[one.kind],
            )
        )
    if lane.failed and lane.stretches:
        parts.append(_cross(frame.x.place(max(one.end for one in lane.stretches)), middle))
    return element("g", "".join(parts), class_="lane")


def totals(lane: Lane, kinds: int) -> list[tuple[float, int]]:
    """(seconds, how many) of the stretches of each kind."""
    lengths = [[one.end - one.start for one in lane.stretches if one.kind == kind] for kind in range(kinds)]
    return [(sum(found), len(found)) for found in lengths]


def _words(lane: Lane, kinds: Sequence[str]) -> str:
    spans = [
        f"{name} {number(seconds)} s" + (f" in {count}" if count > 1 else "")
        for name, (seconds, count) in zip(kinds, totals(lane, len(kinds)), strict=True)
        if count
    ]
    begin = f" from {number(lane.stretches[0].start)} s" if lane.stretches else ""
    return f"{lane.name}{begin}: {', '.join(spans)}" + (f"; {lane.note}" if lane.note else "")


def _legend(names: Sequence[str]) -> tuple[list[str], float]:
    """Swatches, and how far their rows reach below the first."""
    places, rows = flow(names, swatch=16, start=LEFT)
    parts = []
    for place, (name, (x, row)) in enumerate(zip(names, places, strict=True)):
        y = 38 + LEGEND_ROW * row
        if name == FAILED:
            parts.append(_cross(x + 8, y))
        else:
            parts.append(element("rect", x=x, y=y - 6, width=16, height=11, fill=LANE_KINDS[place]))
        parts.append(text(name, x + 22, y + 4))
    return parts, LEGEND_ROW * (rows - 1)


def _cross(x: float, y: float) -> str:
    path = f"M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0-7l-7 7"
    return element("path", d=path, stroke=MARK, stroke_width=1.8, fill="none")
