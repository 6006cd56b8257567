"""How values are spread: histogram and empirical distribution."""

from collections.abc import Mapping, Sequence

from benchmarks.charts.data import Mark
from benchmarks.charts.scale import Kind, nice_step, number, scale
from benchmarks.charts.style import SURFACE, dash_pattern, series_colour
from benchmarks.charts.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Frame, element, near, tooltip

MOST_STEPS = 400  # of one distribution: more than there are pixels to tell them apart


def histogram(
    values: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str,
    bins: int = 30,
    marks: Sequence[Mark] = (),
    whole: bool = False,
    description: str = "",
) -> str:
    """Counts of values in about `bins` equal intervals with round borders. Marks are values of the x axis.

    `whole` is for values that are counts themselves: no interval is narrower than from one number to the next.
    """
    counted = intervals(values, bins, whole=whole)
    half = 0.5 if whole else 0.0  # a bar of one whole number stands over it
    borders = [counted[0][0] - half, counted[-1][1] - half] if counted else []
    if len(counted) == 1:  # a lone bar need not fill the picture
        room = 3 * (borders[1] - borders[0])
        borders = [max(borders[0] - room, min(0.0, borders[0])), borders[1] + room]
    frame = Frame(
        title=title,
        x=scale("linear", [*borders, *near(marks, values)], start=LEFT, end=WIDTH - RIGHT, whole=whole),
        y=scale("linear", [0.0, *(float(count) for *_, count in counted)], start=HEIGHT - BOTTOM, end=TOP, whole=True),
        x_label=x_label,
        y_label=y_label,
        description=description or f"Distribution of {len(values)} values of {x_label}",
    )
    for low, high, count in counted:
        left, right, top = frame.x.place(low - half), frame.x.place(high - half), frame.y.place(count)
        frame.body.append(
            element(
                "rect",
                tooltip(f"{span(low, high, whole=whole)}: {count}"),
                x=left,
                y=top,
                width=right - left,
                height=frame.y.start - top,
                fill=series_colour(0),
                stroke=SURFACE,
            )
        )
    frame.vertical_marks(marks)
    return frame.render()


def cdf(
    groups: Mapping[str, Sequence[float]],
    *,
    title: str,
    x_label: str,
    y_label: str = "share (%)",
    marks: Sequence[Mark] = (),
    x_scale: Kind = "linear",
    description: str = "",
) -> str:
    """The share of values at or below x, one line for each named group. Marks are values of the x axis."""
    everything = [value for values in groups.values() for value in values]
    frame = Frame(
        title=title,
        x=scale(x_scale, [*everything, *near(marks, everything)], start=LEFT, end=WIDTH - RIGHT),
        y=scale("linear", [0.0, 100.0], start=HEIGHT - BOTTOM, end=TOP),
        x_label=x_label,
        y_label=y_label,
        description=description or f"Share of values at or below {x_label}: " + ", ".join(groups),
        legend=[(name, dash_pattern(index)) for index, name in enumerate(groups)],
    )
    for index, values in enumerate(groups.values()):
        if not values:
            continue
        places = " ".join(f"{frame.x.place(x):.1f},{frame.y.place(share):.1f}" for x, share in _steps(values))
        frame.body.append(
            element(
                "polyline",
                points=places,
                fill="none",
                stroke=series_colour(index),
                stroke_width=2,
                stroke_dasharray=dash_pattern(index),
            )
        )
    frame.vertical_marks(marks, below=True)
    return frame.render()


def intervals(values: Sequence[float], bins: int, *, whole: bool = False) -> list[tuple[float, float, int]]:
    """(from, to, count) with round borders. The last interval includes its upper border, but among `whole` ones."""
    if not values:
        return []
    low, high = min(values), max(values)
    step = nice_step(((high - low) or (1.0 if whole else abs(low)) or 1.0) / bins, whole=whole)
    first = int(low // step)
    counts = [0] * (max(int(high // step) - first, 0) + 1)
    for value in values:
        counts[int(value // step) - first] += 1
    if not whole and len(counts) > 1 and counts[-1] and high <= (first + len(counts) - 1) * step:
        counts[-2] += counts.pop()
    return [((first + place) * step, (first + place + 1) * step, count) for place, count in enumerate(counts)]


def span(low: float, high: float, *, whole: bool = False) -> str:
    """An interval in words; of whole numbers, the first and the last that are in it."""
    if not whole:
        return f"{number(low)} to {number(high)}"
    return number(low) if high - low <= 1 else f"{number(low)} to {number(high - 1)}"


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of the step function, thinned out evenly; both ends stay."""
    ordered, n = sorted(values), len(values)
    every = max(1, n // MOST_STEPS)
    kept = [*range(0, n, every), *([n - 1] if (n - 1) % every else [])]
    corners: list[tuple[float, float]] = [(ordered[0], 0.0)]
    for place in kept:
        corners.append((ordered[place], corners[-1][1]))
        corners.append((ordered[place], (place + 1) / n * 100))
    return corners
