"""The colours of the charts: names of CSS variables, each with the light colour as its fallback."""

from pathlib import Path

# Apart from one another for every common kind of colour blindness; series differ by dash pattern or marker as well.
_SERIES = ("#0072b2", "#c44f00", "#007a58", "#a8457f", "#7a5f00", "#4b55c4")
GRID = "var(--chart-grid, #d9dde3)"
BAND = "var(--chart-band, #8a94a6)"
MARK = "var(--chart-mark, #b42318)"
SURFACE = "var(--chart-surface, #ffffff)"
# Of the stretches of a timeline, told apart by their lightness as well: before it began, waiting, at work, two delays.
LANE_KINDS = (
    "var(--chart-lane-1, #aab2bf)",
    "var(--chart-lane-2, #e8a33d)",
    "var(--chart-lane-3, #5aa0dc)",
    "var(--chart-lane-4, #123a5e)",
    "var(--chart-lane-5, #b0127b)",
)
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 4", "12 4 2 4 2 4")


def series_colour(number: int) -> str:
    """Colours repeat after the sixth series; the dash pattern then still tells neighbours apart."""
    index = number % len(_SERIES)
    return f"var(--chart-{index + 1}, {_SERIES[index]})"


def dash_pattern(number: int, *, dashed: bool = False) -> str:
    return _DASHES[1] if dashed else _DASHES[number % len(_DASHES)]


def stylesheet() -> str:
    """The text of the charts' style sheet, for a page that must stand alone; other pages link the static file."""
    return (Path(__file__).parent.parent / "static" / "benchmarks" / "charts.css").read_text()
