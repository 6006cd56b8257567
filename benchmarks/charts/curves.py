"""Throughput against latency: points of a sweep joined in the order of load, with the knee marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.charts.data import Mark
from benchmarks.charts.scale import Kind, number, scale
from benchmarks.charts.style import MARK, dash_pattern, series_colour
from benchmarks.charts.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    element,
    text,
    text_over,
    tooltip,
)


@dataclass(frozen=True)
class CurvePoint:
    """One load. `y_low` and `y_high` are the ends of its error bar; `url` leads to its run."""

    x: float
    y: float
    label: str
    y_low: float | None = None
    y_high: float | None = None
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
    ys = [y for point in points for y in (point.y, point.y_low, point.y_high) if y is not None]
    frame = Frame(
        title=title,
        x=scale(x_scale, [point.x for point in points], start=LEFT, end=WIDTH - RIGHT, from_zero=True),
        y=scale(y_scale, [*ys, *(mark.value for mark in marks)], start=HEIGHT - BOTTOM, end=TOP, from_zero=True),
        x_label=x_label,
        y_label=y_label,
        description=description or f"{y_label} against {x_label}: " + ", ".join(one.name for one in curves),
        legend=[(one.name, dash_pattern(index)) for index, one in enumerate(curves)],
    )
    for index, one in enumerate(curves):
        colour = series_colour(index)
        places = " ".join(f"{frame.x.place(point.x):.1f},{frame.y.place(point.y):.1f}" for point in one.points)
        frame.body.append(
            element(
                "polyline",
                points=places,
                fill="none",
                stroke=colour,
                stroke_width=2,
                stroke_dasharray=dash_pattern(index),
            )
        )
        for point in one.points:
            frame.body.append(_point(frame, one.name, point, colour))
        if one.knee is not None:
            frame.body.append(_knee(frame, one.points[one.knee], knee_label))
    frame.horizontal_marks(marks)
    return frame.render()


def _point(frame: Frame, name: str, point: CurvePoint, colour: str) -> str:
    x, y = frame.x.place(point.x), frame.y.place(point.y)
    words = f"{name}, {point.label}: {frame.x_label} {number(point.x)}, {frame.y_label} {number(point.y)}"
    parts = []
    if point.y_low is not None and point.y_high is not None:
        low, high = frame.y.place(point.y_low), frame.y.place(point.y_high)
        parts.append(element("line", x1=x, x2=x, y1=low, y2=high, stroke=colour))
    parts.append(element("circle", tooltip(words), class_="point", cx=x, cy=y, r=4, fill=colour, stroke=colour))
    near_edge = x > frame.x.end - 40
    parts.append(text_over(point.label, x - 8 if near_edge else x + 8, y - 8, "end" if near_edge else "start"))
    drawn = "".join(parts)
    return f'<a href="{escape(point.url)}">{drawn}</a>' if point.url else drawn


def _knee(frame: Frame, point: CurvePoint, label: str) -> str:
    x, y = frame.x.place(point.x), frame.y.place(point.y)
    ring = element("circle", tooltip(label), class_="knee", cx=x, cy=y, r=9, fill="none", stroke=MARK, stroke_width=2)
    return ring + text(label, x, y + 24, text_anchor="middle", font_weight=600)
