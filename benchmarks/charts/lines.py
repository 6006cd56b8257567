"""Values over time or over load: the line chart, and the line without axes that fits a table cell."""

from collections.abc import Sequence

from benchmarks.charts.data import Band, Mark, Series
from benchmarks.charts.scale import Kind, are_whole, number, scale
from benchmarks.charts.style import dash_pattern, series_colour
from benchmarks.charts.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    RIGHT_WITH_AXIS,
    TOP,
    WIDTH,
    Frame,
    document,
    element,
    near,
    tooltip,
)

MOST_MARKERS = 60  # beyond these dots hide the line
MOST_TOOLTIPS = 500  # beyond these the markup outweighs what anyone can point at


def line(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y2_label: str = "",
    description: str = "",
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    x_scale: Kind = "linear",
    y_scale: Kind = "linear",
) -> str:
    """Series over a common x axis; those with `second_axis` have their own scale on the right.

    Marks are values of the left y axis. Linear y axes begin at zero.
    """
    second = [one for one in series if one.second_axis]
    right = WIDTH - (RIGHT_WITH_AXIS if second else RIGHT)
    first_axis = _ys([one for one in series if not one.second_axis])
    first_axis += near(marks, first_axis)
    xs = [x for one in series for x, _ in one.points]
    start, end = HEIGHT - BOTTOM, TOP
    frame = Frame(
        title=title,
        x=scale(x_scale, xs, start=LEFT, end=right, whole=are_whole(xs)),
        y=scale(y_scale, first_axis, start=start, end=end, from_zero=True, whole=are_whole(first_axis)),
        x_label=x_label,
        y_label=y_label,
        y2=scale("linear", _ys(second), start=start, end=end, from_zero=True) if second else None,
        y2_label=y2_label,
        description=description or f"{y_label} over {x_label}: " + ", ".join(one.name for one in series),
        legend=[(one.name, dash_pattern(index, dashed=one.dashed)) for index, one in enumerate(series)],
    )
    frame.bands(bands)
    for index, one in enumerate(series):
        _draw(frame, one, index)
    frame.horizontal_marks(marks)
    return frame.render()


def sparkline(values: Sequence[float | None], *, title: str, width: int = 120, height: int = 28) -> str:
    """The run of a value at a glance, oldest first; the last one has a dot."""
    points = [(float(place), value) for place, value in enumerate(values)]
    known = [(x, y) for x, y in points if y is not None]
    body = []
    if known:
        xs = scale("time", [float(x) for x, _ in points], start=3, end=width - 5)
        ys = scale("time", [y for _, y in known], start=height - 4, end=4)
        colour = series_colour(0)
        for stretch in _stretches(points):
            places = " ".join(f"{xs.place(x):.1f},{ys.place(y):.1f}" for x, y in stretch)
            body.append(element("polyline", points=places, fill="none", stroke=colour, stroke_width=1.5))
        x, y = known[-1]
        body.append(element("circle", tooltip(number(y)), cx=xs.place(x), cy=ys.place(y), r=3, fill=colour))
    words = f"from {number(known[0][1])} to {number(known[-1][1])}" if known else "no values"
    return document(body, title=f"{title}: {words}", description="", width=width, height=height)


def _draw(frame: Frame, series: Series, index: int) -> None:
    ys = frame.y2 if series.second_axis and frame.y2 else frame.y
    colour = series_colour(index)
    for stretch in _stretches(series.points):
        places = " ".join(f"{frame.x.place(x):.1f},{ys.place(y):.1f}" for x, y in stretch)
        frame.body.append(
            element(
                "polyline",
                points=places,
                fill="none",
                stroke=colour,
                stroke_width=2,
                stroke_linejoin="round",
                stroke_dasharray=dash_pattern(index, dashed=series.dashed),
            )
        )
    known = [(x, y) for x, y in series.points if y is not None]
    if len(known) > MOST_TOOLTIPS:
        return
    visible = len(known) <= MOST_MARKERS
    for x, y in known:
        frame.body.append(
            element(
                "circle",
                tooltip(f"{series.name}: {number(y)} at {number(x)}"),
                class_="point",
                cx=frame.x.place(x),
                cy=ys.place(y),
                r=3,
                fill=colour,
                fill_opacity=1 if visible else 0,
            )
        )


def _ys(series: Sequence[Series]) -> list[float]:
    return [y for one in series for _, y in one.points if y is not None]


def _stretches(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The points between gaps, in order; a lone point makes no line."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            stretches.append([])
        else:
            stretches[-1].append((x, y))
    return [stretch for stretch in stretches if len(stretch) > 1]
