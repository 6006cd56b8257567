"""Where the states of sessions are, over time: samples, and curves of them for a chart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.db.models import Sum
from django.utils import timezone

from sessions.actions import live_engines
from sessions.models import LevelSample, Session, Snapshot

KEPT_DAYS = 7
SHOWN_HOURS = 24
WIDTH, HEIGHT = 720, 160  # of a chart, in its own units
MOST_POINTS = 360

Value = Callable[[LevelSample, LevelSample], float | None]  # of the sample before and this one


def take_sample() -> None:
    """Store a sample and drop those that are too old."""
    engines = live_engines()
    LevelSample.objects.create(
        device_states=sum(len(engine.device_states) for engine in engines),
        host_states=sum(len(engine.host_states) for engine in engines),
        sessions=Session.objects.present().count(),
        snapshot_bytes=Snapshot.objects.aggregate(bytes=Sum("size"))["bytes"] or 0,
        state_hits=sum(engine.state_hits for engine in engines),
        state_loads=sum(engine.state_loads for engine in engines),
        cached_tokens=sum(engine.cached_tokens for engine in engines),
        prompt_tokens=sum(engine.prompt_tokens for engine in engines),
    )
    LevelSample.objects.filter(created__lt=timezone.now() - timedelta(days=KEPT_DAYS)).delete()


@dataclass(frozen=True, slots=True)
class Curve:
    """`path` is what an SVG path draws: a line wherever there are values."""

    label: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    top: str  # what the upper edge stands for
    curves: list[Curve]


def read_charts(now: datetime) -> list[Chart]:
    """Of the last SHOWN_HOURS."""
    begin = now - timedelta(hours=SHOWN_HOURS)
    samples = list(LevelSample.objects.filter(created__gte=begin, created__lte=now))
    samples = samples[:: max(1, -(-len(samples) // MOST_POINTS))]
    levels: dict[str, Value] = {
        "L1, on the device": lambda _, sample: sample.device_states,
        "L2, in memory": lambda _, sample: sample.host_states,
        "sessions": lambda _, sample: sample.sessions,
    }
    sizes: dict[str, Value] = {"snapshots": lambda _, sample: sample.snapshot_bytes / 2**20}
    rates: dict[str, Value] = {
        "turns whose state was in memory": lambda before, sample: _share(
            sample.state_hits - before.state_hits, sample.state_loads - before.state_loads
        ),
        "prompt tokens that were cached": lambda before, sample: _share(
            sample.cached_tokens - before.cached_tokens, sample.prompt_tokens - before.prompt_tokens
        ),
    }
    return [
        _chart("States", samples, begin, levels, "{:.0f}"),
        _chart("Hit rates", samples, begin, rates, "{:.0%}", top=1.0),
        _chart("Size in the database", samples, begin, sizes, "{:.1f} MB"),
    ]


def _share(part: int, rest: int) -> float | None:
    """None where nothing was counted, or where an engine has started anew."""
    return part / (part + rest) if part >= 0 and rest >= 0 and part + rest else None


def _chart(
    title: str,
    samples: Sequence[LevelSample],
    begin: datetime,
    values: dict[str, Value],
    form: str,
    top: float = 0.0,
) -> Chart:
    series = {
        label: [(after.created, value(before, after)) for before, after in pairwise(samples)]
        for label, value in values.items()
    }
    known = [value for points in series.values() for _, value in points if value is not None]
    top = top or max(known, default=0.0) or 1.0
    curves = []
    for label, points in series.items():
        last = next((value for _, value in reversed(points) if value is not None), None)
        curves.append(Curve(label, _path(points, begin, top), form.format(last) if last is not None else "–"))
    return Chart(title, form.format(top), curves)


def _path(points: Sequence[tuple[datetime, float | None]], begin: datetime, top: float) -> str:
    seconds = SHOWN_HOURS * 3600
    parts, pen = [], "M"
    for moment, value in points:
        if value is None:
            pen = "M"
            continue
        x = WIDTH * (moment - begin).total_seconds() / seconds
        parts.append(f"{pen}{x:.1f},{HEIGHT * (1 - value / top):.1f}")
        pen = "L"
    return "".join(parts)
