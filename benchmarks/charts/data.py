"""What a chart is given, beside plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One line. A point whose y is None interrupts it."""

    name: str
    points: Sequence[tuple[float, float | None]]
    second_axis: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Band:
    """A shaded stretch of the x axis, such as a phase of a run."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A labelled line across the plot at one value: a limit, a percentile."""

    value: float
    label: str


@dataclass(frozen=True)
class Stretch:
    """A part of a lane. `kind` is a place in the kinds of its chart."""

    kind: int
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    """One bar of a timeline. Later stretches are drawn over earlier ones; `failed` marks its end with a cross."""

    name: str
    stretches: Sequence[Stretch]
    note: str = ""
    failed: bool = False
