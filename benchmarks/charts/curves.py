"""Points of a sweep: throughput against latency in the order of load, and which loads no other one beats."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.charts.data import Mark
from benchmarks.charts.scale import Kind, Scale, number, scale
from benchmarks.charts.style import MARK, SURFACE, dash_pattern, series_colour
from benchmarks.charts.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    element,
    flow,
    near,
    text,
    text_over,
    tooltip,
)

CAP = 4.0  # px to each side of an error bar's end
ROOM = 1.25  # error bars may stretch an axis to so many times its highest point; beyond that they are cut off
FRONTIER, BEATEN = "frontier", "beaten by another load"

Interval = tuple[float, float]


@dataclass(frozen=True)
class CurvePoint:
    """One load. The intervals are its error bars; `url` leads to its run."""

    x: float
    y: float
    label: str
    x_interval: Interval | None = None
    y_interval: Interval | None = None
    url: str = ""


@dataclass(frozen=True)
class Curve:
    """Points in the order of load. `knee` is the place of the point to mark."""

    name: str
    points: Sequence[CurvePoint]
    knee: int | None = None


def curve(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    marks: Sequence[Mark] = (),
    x_scale: Kind = "linear",
    y_scale: Kind = "linear",
    knee_label: str = "knee",
    description: str = "",
) -> str:
    """Curves with labelled points. Marks are values of the y axis, such as a limit of latency."""
    points = [point for one in curves for point in one.points]
    x, y = _axes(points, marks, x_scale, y_scale)
    frame = Frame(
        title=title,
        x=x,
        y=y,
        x_label=x_label,
        y_label=y_label,
        description=description or f"{y_label} against {x_label}: " + ", ".join(one.name for one in curves),
        legend=[(one.name, dash_pattern(index)) for index, one in enumerate(curves)],
    )
    for index, one in enumerate(curves):
        colour = series_colour(index)
        frame.body.append(_path(frame, one.points, colour, dash_pattern(index)))
        frame.body.extend(_error_bars(frame, one.points, colour))
        for place, point in enumerate(one.points):
            label = f"{point.label} ({knee_label})" if place == one.knee else point.label
            frame.body.append(_point(frame, one.name, point, label, colour, filled=True, rising=True))
        if one.knee is not None:
            frame.body.append(_knee(frame, one.points[one.knee], knee_label))
    frame.horizontal_marks(marks)
    return frame.render()


def pareto(
    points: Sequence[CurvePoint], *, title: str, x_label: str, y_label: str, name: str, description: str = ""
) -> str:
    """Points of which more is better on both axes: filled and joined where no other point has more of both."""
    best = frontier(points)
    loads = ", ".join(points[place].label for place in best)
    x, y = _axes(points, (), "linear", "linear")
    frame = Frame(
        title=title,
        x=x,
        y=y,
        x_label=x_label,
        y_label=y_label,
        description=description or f"{y_label} against {x_label}; no other point beats those at {loads}",
    )
    frame.body.extend(_pareto_legend())
    frame.body.append(_path(frame, [points[place] for place in best], series_colour(0), "none"))
    frame.body.extend(_error_bars(frame, points, series_colour(0)))
    for place, point in enumerate(points):
        frame.body.append(_point(frame, name, point, point.label, series_colour(0), filled=place in best, rising=False))
    return frame.render()


def _pareto_legend() -> list[str]:
    parts, colour = [], series_colour(0)
    places, _ = flow([FRONTIER, BEATEN], swatch=26, start=LEFT)
    for (x, _), name in zip(places, (FRONTIER, BEATEN), strict=True):
        if name == FRONTIER:
            parts.append(element("line", x1=x, x2=x + 26, y1=38, y2=38, stroke=colour, stroke_width=2))
        fill = colour if name == FRONTIER else SURFACE
        parts.append(element("circle", cx=x + 13, cy=38, r=4, stroke=colour, stroke_width=1.5, fill=fill))
        parts.append(text(name, x + 32, 42))
    return parts


def frontier(points: Sequence[CurvePoint]) -> list[int]:
    """Places of the points that no other one beats, by ascending x: none has as much of both and more of one."""
    order = sorted(range(len(points)), key=lambda place: (-points[place].x, -points[place].y))
    best: list[int] = []
    for place in order:
        if not best or points[place].y > points[best[-1]].y:
            best.append(place)
    return best[::-1]


def _axes(points: Sequence[CurvePoint], marks: Sequence[Mark], x_scale: Kind, y_scale: Kind) -> tuple[Scale, Scale]:
    xs, ys = [point.x for point in points], [point.y for point in points]
    widest = [end for point in points for end in point.x_interval or ()]
    tallest = [end for point in points for end in point.y_interval or ()]
    return (
        scale(x_scale, [*xs, *_within(widest, xs)], start=LEFT, end=WIDTH - RIGHT, from_zero=True),
        scale(y_scale, [*ys, *near(marks, ys), *_within(tallest, ys)], start=HEIGHT - BOTTOM, end=TOP, from_zero=True),
    )


def _within(ends: Sequence[float], values: Sequence[float]) -> list[float]:
    highest = ROOM * max(values, default=0.0)
    return [min(max(end, 0.0), highest) for end in ends]


def _path(frame: Frame, points: Sequence[CurvePoint], colour: str, dashes: str) -> str:
    places = " ".join(f"{frame.x.place(point.x):.1f},{frame.y.place(point.y):.1f}" for point in points)
    return element("polyline", points=places, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dashes)


def _error_bars(frame: Frame, points: Sequence[CurvePoint], colour: str) -> list[str]:
    """With a cap at every end that is in the picture."""
    bars = []
    for point in points:
        x, y = frame.x.place(point.x), frame.y.place(point.y)
        for axis, interval in ((frame.x, point.x_interval), (frame.y, point.y_interval)):
            if interval is None:
                continue
            ends = [(axis.place(min(max(end, axis.low), axis.high)), axis.low <= end <= axis.high) for end in interval]
            along = [f"{end:.1f} {y:.1f}" if axis is frame.x else f"{x:.1f} {end:.1f}" for end, _ in ends]
            cap = f"m0 {-CAP}v{2 * CAP}" if axis is frame.x else f"m{-CAP} 0h{2 * CAP}"
            caps = "".join(f"M{place}{cap}" for place, (_, inside) in zip(along, ends, strict=True) if inside)
            words = tooltip(f"{point.label}: {number(interval[0])} to {number(interval[1])}, 95 % interval")
            style: dict[str, str | float] = {"stroke": colour, "stroke_width": 1.2, "opacity": 0.6, "fill": "none"}
            bars.append(element("path", words, class_="error-bar", d=f"M{along[0]}L{along[1]}{caps}", **style))
    return bars


def _point(frame: Frame, name: str, point: CurvePoint, label: str, colour: str, *, filled: bool, rising: bool) -> str:
    x, y = frame.x.place(point.x), frame.y.place(point.y)
    words = f"{name}, {point.label}: {frame.x_label} {number(point.x)}, {frame.y_label} {number(point.y)}"
    style = {"class_": "point" if filled else "point beaten", "fill": colour if filled else SURFACE}
    wide = 16 + LETTER * len(label)
    left = x + wide > frame.x.end or (rising and x - wide > frame.x.start)  # beside the line, not over it
    drawn = element("circle", tooltip(words), cx=x, cy=y, r=4, stroke=colour, stroke_width=1.5, **style)
    drawn += text_over(label, x - 9 if left else x + 9, y - 9, "end" if left else "start")
    return f'<a href="{escape(point.url)}">{drawn}</a>' if point.url else drawn


def _knee(frame: Frame, point: CurvePoint, label: str) -> str:
    x, y = frame.x.place(point.x), frame.y.place(point.y)
    return element("circle", tooltip(label), class_="knee", cx=x, cy=y, r=9, fill="none", stroke=MARK, stroke_width=2)
