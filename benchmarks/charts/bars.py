"""Values by category: grouped bars, and a strip of cells whose depth shows the value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.charts.scale import Scale, are_whole, number, scale
from benchmarks.charts.style import SURFACE, series_colour
from benchmarks.charts.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    LINE,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    document,
    element,
    text,
    tooltip,
)

STRIP_HEIGHT = 96
WIDEST_GROUP = 150  # px: few bars need not fill the picture


@dataclass(frozen=True)
class _Categories(Scale):
    """A place for each name instead of round numbers."""

    names: tuple[str, ...] = ()

    def ticks(self, wanted: int = 6) -> list[tuple[float, str]]:
        return [(place + 0.5, name) for place, name in enumerate(self.names)]


def bars(
    categories: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    description: str = "",
) -> str:
    """A group of bars for each category; None leaves its place empty."""
    values = [value for row in series.values() for value in row if value is not None]
    whole = are_whole(values)
    names = _broken(categories, (WIDTH - RIGHT - LEFT) / max(len(categories), 1))
    lines = max((name.count("\n") for name in names), default=0)
    frame = Frame(
        title=title,
        x=_Categories("linear", 0, max(len(categories), 1), LEFT, WIDTH - RIGHT, names=names),
        y=scale("linear", values, start=HEIGHT - BOTTOM, end=TOP, from_zero=True, whole=whole),
        x_label=x_label,
        y_label=y_label,
        description=description or f"{y_label} by {x_label}: " + ", ".join(series),
        legend=[(name, "none") for name in series],
        height=HEIGHT + LINE * lines,
    )
    across = min(0.8, WIDEST_GROUP / (frame.x.place(1) - frame.x.place(0)))
    width = across / max(len(series), 1)
    floor = frame.y.place(0)
    for index, (name, row) in enumerate(series.items()):
        for place, value in enumerate(row):
            if value is None:
                continue
            left, right = (frame.x.place(place + (1 - across) / 2 + width * (index + side)) for side in (0, 1))
            top = frame.y.place(value)
            frame.body.append(
                element(
                    "rect",
                    tooltip(f"{categories[place]}, {name}: {number(value)}"),
                    x=left,
                    y=min(top, floor),
                    width=right - left,
                    height=abs(floor - top),
                    fill=series_colour(index),
                    stroke=SURFACE,
                )
            )
    return frame.render()


def _broken(names: Sequence[str], room: float) -> tuple[str, ...]:
    """The names as they are if all are narrower than `room` px, else in a line for each word."""
    if all(LETTER * len(name) < room for name in names):
        return tuple(names)
    return tuple(name.replace("_", "\n").replace(" ", "\n") for name in names)


def heat_strip(
    values: Sequence[float | None],
    *,
    title: str,
    x_label: str,
    unit: str = "",
    labels: Sequence[str] | None = None,
    description: str = "",
) -> str:
    """Cells in a row, the deeper the greater; None stays empty. `labels` name the cells, else they are counted."""
    known = [value for value in values if value is not None]
    highest = max(known, default=0) or 1
    names = labels or [str(place) for place in range(len(values))]
    width = (WIDTH - 2 * RIGHT) / max(len(values), 1)
    body = [text(title, 12, 20, font_size=15, font_weight=600)]
    for place, value in enumerate(values):
        body.append(
            element(
                "rect",
                tooltip(f"{names[place]}: {'no value' if value is None else f'{number(value)} {unit}'.strip()}"),
                x=RIGHT + place * width,
                y=34,
                width=width,
                height=28,
                fill=series_colour(0),
                fill_opacity=0 if value is None else 0.06 + 0.94 * max(value, 0) / highest,
            )
        )
    body.append(element("rect", x=RIGHT, y=34, width=WIDTH - 2 * RIGHT, height=28, fill="none", stroke="currentColor"))
    if names:
        body.append(text(names[0], RIGHT, 80))
        body.append(text(names[-1], WIDTH - RIGHT, 80, text_anchor="end"))
    body.append(text(f"{x_label}; deepest: {number(highest)} {unit}".rstrip(), WIDTH / 2, 80, text_anchor="middle"))
    words = description or f"{title}: {len(known)} values, highest {number(max(known, default=0))} {unit}".rstrip()
    return document(body, title=title, description=words, height=STRIP_HEIGHT)
