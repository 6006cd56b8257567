"""From values to places on an axis, and the round values that an axis names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

Kind = Literal["linear", "log", "time"]

_TIME_STEPS = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end]; `time` takes Unix seconds."""

    kind: Kind
    low: float
    high: float
    start: float
    end: float
    whole: bool = False  # counts have no ticks between whole numbers

    def place(self, value: float) -> float:
        if self.kind == "log":
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 6) -> list[tuple[float, str]]:
        """Round values within the axis with their labels, about as many as wanted."""
        if self.kind == "log":
            values = _log_ticks(self.low, self.high)
            return [(value, number(value)) for value in values]
        if self.kind == "time":
            seconds = next((one for one in _TIME_STEPS if (self.high - self.low) / one <= wanted), _TIME_STEPS[-1])
            return [(value, _moment(value, seconds)) for value in _multiples(self.low, self.high, seconds)]
        step = nice_step((self.high - self.low) / wanted, whole=self.whole)
        digits = next(count for count in range(12) if abs(step * 10**count - round(step * 10**count)) < 1e-6)
        return [(value, f"{value + 0.0:,.{digits}f}") for value in _multiples(self.low, self.high, step)]


def scale(
    kind: Kind, values: Sequence[float], *, start: float, end: float, from_zero: bool = False, whole: bool = False
) -> Scale:
    """An axis that holds all values and ends at round ones. Values that a log axis cannot show are left out of it."""
    if kind == "log":
        values = [value for value in values if value > 0]
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    if kind == "log":
        low, high = _log_floor(low), _log_ceiling(high)
        return Scale(kind, low, high if high > low else low * 10, start, end)
    if from_zero:
        low = min(low, 0.0)
    if high <= low:
        high = low + (abs(low) or 1.0)
    if kind == "linear":
        step = nice_step((high - low) / 6, whole=whole)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(kind, low, high, start, end, whole)


def are_whole(values: Sequence[float]) -> bool:
    """Whether these are counts: an axis of them has no fractions."""
    return all(isinstance(value, int) for value in values)


def nice_step(rough: float, *, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `rough`; of whole numbers if asked."""
    if whole:
        rough = max(rough, 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    return next(factor * power for factor in factors if factor * power >= rough * (1 - 1e-9))


def number(value: float) -> str:
    """A number for people: about four digits and at most six decimals, thousands separated, no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    digits = min(max(0, 3 - math.floor(math.log10(abs(value)))), 6)
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def _log_floor(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= value * (1 + 1e-9))


def _log_ceiling(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    factors = (1, 2, 5) if high / low < 2000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _moment(value: float, step: float) -> str:
    pattern = "%H:%M:%S" if step < 60 else "%m-%d %H:%M" if step < 86400 else "%Y-%m-%d"
    return datetime.fromtimestamp(value, UTC).strftime(pattern)
