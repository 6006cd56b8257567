"""The table twin of a chart: the same figures as text. Each function takes the data of the chart of the same name."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import quantiles

from benchmarks.charts.curves import BEATEN, FRONTIER, Curve, CurvePoint, Interval, frontier
from benchmarks.charts.data import Lane, Series
from benchmarks.charts.distributions import intervals, span
from benchmarks.charts.lanes import totals
from benchmarks.charts.scale import number

Cell = str | float | None

PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


def figure(chart: str, twin: str, *, label: str, summary: str = "Data") -> str:
    """A chart with its table folded below it. The chart scrolls sideways on a narrow screen, also by keyboard."""
    scroll = f'<div class="chart-scroll" tabindex="0" role="group" aria-label="{escape(label)}">{chart}</div>'
    folded = (
        f'<details class="chart-data"><summary>{escape(summary)}</summary>'
        f'<div class="chart-scroll" tabindex="0" role="group" aria-label="{escape(label)}">{twin}</div></details>'
    )
    return f'<figure class="chart-figure">{scroll}{folded}</figure>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str) -> str:
    """A plain table; the first cell of a row is its header. None is shown as a dash."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return (
        f'<table class="chart-table"><caption>{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    )


def line(series: Sequence[Series], *, title: str, x_label: str) -> str:
    """A row for each x of any series."""
    values = [dict(one.points) for one in series]
    xs = sorted({x for one in values for x in one})
    rows: list[list[Cell]] = [[x, *(one.get(x) for one in values)] for x in xs]
    return table([x_label, *(one.name for one in series)], rows, title=title)


def histogram(
    values: Sequence[float], *, title: str, x_label: str, y_label: str, bins: int = 30, whole: bool = False
) -> str:
    counted = intervals(values, bins, whole=whole)
    rows: list[list[Cell]] = [[span(low, high, whole=whole), count] for low, high, count in counted]
    return table([x_label, y_label], rows, title=title)


def cdf(groups: Mapping[str, Sequence[float]], *, title: str, share_label: str = "percentile") -> str:
    """Percentiles with linear interpolation, a column for each group."""
    columns = [_percentiles(values) for values in groups.values()]
    rows: list[list[Cell]] = [[f"{share:g}", *row] for share, *row in zip(PERCENTILES, *columns, strict=True)]
    return table([share_label, *groups], rows, title=title)


def curve(curves: Sequence[Curve], *, title: str, x_label: str, y_label: str) -> str:
    marked = [
        (one.name, point, "knee" if one.knee == place else "")
        for one in curves
        for place, point in enumerate(one.points)
    ]
    return _points(marked, title=title, x_label=x_label, y_label=y_label)


def pareto(points: Sequence[CurvePoint], *, title: str, x_label: str, y_label: str, name: str) -> str:
    best = frontier(points)
    marked = [(name, point, FRONTIER if place in best else BEATEN) for place, point in enumerate(points)]
    return _points(marked, title=title, x_label=x_label, y_label=y_label)


def _points(marked: Sequence[tuple[str, CurvePoint, str]], *, title: str, x_label: str, y_label: str) -> str:
    """With a column for the intervals where there are any."""
    columns, rows = ["load", "curve", x_label, y_label], []
    with_intervals = any(point.x_interval or point.y_interval for _, point, _ in marked)
    if with_intervals:
        columns = ["load", "curve", x_label, "95 % interval", y_label, "95 % interval"]
    for name, point, note in marked:
        figures: list[Cell] = [point.x, point.y]
        if with_intervals:
            figures = [point.x, _interval(point.x_interval), point.y, _interval(point.y_interval)]
        rows.append([point.label, name, *figures, note])
    return table([*columns, ""], rows, title=title)


def _interval(interval: Interval | None) -> str | None:
    return None if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def bars(categories: Sequence[str], series: Mapping[str, Sequence[float | None]], *, title: str, x_label: str) -> str:
    rows = [[name, *(row[place] for row in series.values())] for place, name in enumerate(categories)]
    return table([x_label, *series], rows, title=title)


def heat_strip(values: Sequence[float | None], *, title: str, x_label: str, labels: Sequence[str] | None = None) -> str:
    names = labels or [str(place) for place in range(len(values))]
    return table([x_label, title], list(zip(names, values, strict=True)), title=title)


def lanes(rows: Sequence[Lane], kinds: Sequence[str], *, title: str, x_label: str) -> str:
    """A row for each lane: where it begins, and the seconds of each kind, with how many where they are several."""
    cells: list[list[Cell]] = []
    for lane in rows:
        begin = lane.stretches[0].start if lane.stretches else None
        spans = [
            None if not count else seconds if count == 1 else f"{number(seconds)} in {count}"
            for seconds, count in totals(lane, len(kinds))
        ]
        cells.append([lane.name, begin, *spans, lane.note])
    return table([x_label, "from, s", *(f"{kind}, s" for kind in kinds), "end"], cells, title=title)


def _row(row: Sequence[Cell]) -> str:
    first, *rest = (_cell(cell) for cell in row)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest)


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    return escape(cell) if isinstance(cell, str) else number(cell)


def _percentiles(values: Sequence[float]) -> list[float | None]:
    if not values:
        return [None] * len(PERCENTILES)
    inner = quantiles(values, n=1000, method="inclusive") if len(values) > 1 else [values[0]] * 999
    cuts = [min(values), *inner, max(values)]
    return [cuts[round(share * 10)] for share in PERCENTILES]
