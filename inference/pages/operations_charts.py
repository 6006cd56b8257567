"""The last hour as charts: means of the engines' samples over STEP_SECONDS, drawn on the server."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from benchmarks import charts
from benchmarks.charts import Series, table
from inference.bus.messages import EngineSample
from inference.bus.operations import HISTORY_SECONDS, SAMPLE_SECONDS

STEP_SECONDS = 60.0
GAP_SECONDS = 3 * SAMPLE_SECONDS  # between two samples of an engine that was away

Samples = list[tuple[float, EngineSample]]  # (Unix seconds, sample), oldest first


@dataclass(slots=True)
class Step:
    """Sums over the engines of each one's mean; times to first token are those of the slowest engine."""

    generated_rate: float = 0.0  # tokens/s
    prompt_rate: float = 0.0
    cached_rate: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    device_states: float = 0.0
    host_states: float = 0.0
    ttft_ms_p50: float | None = None
    ttft_ms_p99: float | None = None

    @property
    def hit_rate(self) -> float | None:
        """Of the prompts' tokens, the share (%) that the cache has spared, if there were any."""
        tokens = self.cached_rate + self.prompt_rate
        return 100 * self.cached_rate / tokens if tokens else None


@dataclass(slots=True)
class _Engine:
    """One engine's samples within one step, the last one before it among them."""

    samples: Samples = field(default_factory=list)

    def add_to(self, step: Step) -> None:
        """Rates come from counters, so that short bursts between two samples count."""
        (begin, first), *_, (end, last) = self.samples
        seconds = end - begin
        step.generated_rate += (last.generated_tokens - first.generated_tokens) / seconds
        step.prompt_rate += (last.prompt_tokens - first.prompt_tokens) / seconds
        step.cached_rate += (last.cached_tokens - first.cached_tokens) / seconds
        inner = [sample for _, sample in self.samples[1:]]
        for name in ("running", "waiting", "device_states", "host_states"):
            mean = sum(getattr(sample, name) for sample in inner) / len(inner)
            setattr(step, name, getattr(step, name) + mean)
        for name in ("ttft_ms_p50", "ttft_ms_p99"):
            times = [getattr(step, name), *(getattr(sample, name) for sample in inner)]
            setattr(step, name, max((time for time in times if time is not None), default=None))


def steps_of(samples: Samples, now: float) -> list[tuple[float, Step | None]]:
    """(minutes from now, what happened) for each step of the last hour; None where no engine was alive."""
    by_engine: dict[str, Samples] = defaultdict(list)
    for moment, sample in samples:
        by_engine[sample.engine].append((moment, sample))
    steps: dict[int, Step] = {}
    for own in by_engine.values():
        for number, engine in _by_step(own):
            engine.add_to(steps.setdefault(number, Step()))
    last = int(now // STEP_SECONDS)
    first = last - int(HISTORY_SECONDS / STEP_SECONDS) + 1
    return [((number - last) * STEP_SECONDS / 60, steps.get(number)) for number in range(first, last + 1)]


def _by_step(samples: Samples) -> Iterator[tuple[int, _Engine]]:
    found: dict[int, _Engine] = {}
    for before, sample in pairwise(samples):
        # Where Redis's clock was set back, its streams number all that comes by the same moment.
        if not 0 < sample[0] - before[0] <= GAP_SECONDS:
            continue
        engine = found.setdefault(int(sample[0] // STEP_SECONDS), _Engine([before]))
        engine.samples.append(sample)
    yield from found.items()


def draw_charts(samples: Samples, now: float) -> list[SafeString]:
    steps = steps_of(samples, now)

    def series(name: str, value: Callable[[Step], float | None]) -> Series:
        return Series(name, [(minute, _rounded(value(step)) if step else None) for minute, step in steps])

    return [
        _figure(
            _("Tokens per second"),
            _("tokens/s"),
            series(_("new tokens"), lambda step: step.generated_rate),
            series(_("prompt tokens"), lambda step: step.prompt_rate),
        ),
        _figure(
            _("Time to first token"),
            _("ms"),
            series("p50", lambda step: step.ttft_ms_p50),
            series("p99", lambda step: step.ttft_ms_p99),
        ),
        _figure(
            _("Rows"),
            _("rows"),
            series(_("running"), lambda step: step.running),
            series(_("waiting"), lambda step: step.waiting),
        ),
        _figure(
            _("Tokens of prompts that were cached"),
            "%",
            series(_("hit rate"), lambda step: step.hit_rate),
        ),
        _figure(
            _("States in the cache"),
            _("states"),
            series(_("L1, on the device"), lambda step: step.device_states),
            series(_("L2, in memory"), lambda step: step.host_states),
        ),
    ]


def _figure(title: str, unit: str, *lines: Series) -> SafeString:
    minutes = _("minutes from now")
    chart = charts.line(lines, title=title, x_label=minutes, y_label=unit)
    twin = table.line(lines, title=title, x_label=minutes)
    return mark_safe(table.figure(chart, twin, label=title, summary=_("Data")))  # noqa: S308 - the charts escape


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
