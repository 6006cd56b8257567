"""Charts as SVG text made on the server: pure functions, no JavaScript, nothing loaded from anywhere.

Every function returns one `<svg>` with a title and a description for screen readers, and escapes all text it is given.
Colours are the CSS variables of `static/benchmarks/charts.css`, which knows light and dark; without that sheet the
light colours hold, so that a chart is also a picture by itself. `table` makes the table twin of every kind of chart.
"""

from benchmarks.charts.bars import bars, heat_strip
from benchmarks.charts.curves import Curve, CurvePoint, curve, pareto
from benchmarks.charts.data import Band, Lane, Mark, Series, Stretch
from benchmarks.charts.distributions import cdf, histogram
from benchmarks.charts.lanes import lanes
from benchmarks.charts.lines import line, sparkline
from benchmarks.charts.style import stylesheet
from benchmarks.charts.svg import standalone

__all__ = [
    "Band",
    "Curve",
    "CurvePoint",
    "Lane",
    "Mark",
    "Series",
    "Stretch",
    "bars",
    "cdf",
    "curve",
    "heat_strip",
    "histogram",
    "lanes",
    "line",
    "pareto",
    "sparkline",
    "standalone",
    "stylesheet",
]
