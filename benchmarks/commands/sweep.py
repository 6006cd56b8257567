"""`bench sweep`: the same load at several rates, concurrencies or numbers of users."""

import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Mapping
from copy import copy
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any, TextIO

import msgspec

from benchmarks.commands import delivery, generate, tables
from benchmarks.loadgen import declare, sweep
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.options import Profile, checked_profile
from benchmarks.loadgen.sweep import Place, Point
from benchmarks.output_files import write_json

GOOD_SHARE = 0.99
# What one axis sets may not be given beside it: it would be another load, or none.
EXCLUDED = {
    "request_rate": ("request_rate", "users", "ramp_up_strategy", "stages"),
    "max_concurrency": ("max_concurrency", "users"),
    "users": ("users", "request_rate", "max_concurrency", "ramp_up_strategy", "stages"),
}
COLUMNS = (
    ("request_throughput", "requests/s"),
    ("output_throughput", "tokens/s"),
    ("ttft_p50", "TTFT p50"),
    ("ttft_p99", "TTFT p99"),
    ("tpot_p50", "TPOT p50"),
    ("e2el_mean", "E2EL mean"),
)


def add_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("sweep")
    group.add_argument("--axis", "--workload-var", choices=sweep.AXES, default="request_rate", help="what varies")
    group.add_argument(
        "--values", nargs="+", type=_positive, metavar="N", help="default: spaced between the lowest and the highest"
    )
    group.add_argument("--points", "--workload-iters", type=int, default=5, help="how many of those (5)")
    group.add_argument("--repeats", "--num-runs", type=int, default=1, help="runs of each value (1)")
    group.add_argument("--cooldown", type=float, default=0.0, metavar="SECONDS", help="between two runs (0)")
    group.add_argument("--sweep-result", type=Path, metavar="PATH", help="write the points to this JSON file")
    generate.add_arguments(parser)


def run(options: Namespace, stdout: TextIO) -> int:
    values = generate.given_options(options, {})
    for name in EXCLUDED[options.axis]:
        if name in values:
            raise BadOption(f"--{name.replace('_', '-')} cannot be given beside --axis {options.axis}")
    if options.points < 2 or options.repeats < 1:
        raise BadOption("--points needs at least 2, and --repeats at least 1")
    if options.axis != "request_rate" and not all(value.is_integer() for value in options.values or ()):
        raise BadOption(f"--values: --axis {options.axis} counts, and takes whole numbers")
    if options.run_id:
        raise BadOption("--run-id names a single run, and a sweep has several")
    delivery.check(options, sweep_result=options.sweep_result)
    loads = _Sweep(options, values, stdout)
    wanted = options.values or loads.range()
    times = Counter(wanted * options.repeats)
    places = [loads.place(value, repeat) for value in times for repeat in range(1, times[value] + 1)]
    found = []
    for place in sweep.in_random_order(places, values.get("seed", 0)):
        if loads.interrupted:
            break
        found.append(loads.measure(place))
    found.sort(key=lambda one: one.value)
    _write_table(options.axis, found, stdout)
    if not options.no_store:
        stdout.write(f"stored as the sweep {loads.series}\n")
    if options.sweep_result:
        _save(options.sweep_result, options.axis, found)
        stdout.write(f"written to {options.sweep_result}\n")
    if loads.interrupted:
        return generate.INTERRUPTED
    return 0 if all(one.success_rate for one in found) else generate.FAILED


class _Sweep:
    """Runs that differ in one option, and in their prompts."""

    def __init__(self, options: Namespace, values: Mapping[str, Any], stdout: TextIO) -> None:
        self.interrupted = False
        self.series = f"series-{token_hex(6)}"
        self._options = copy(options)
        self._options.disable_tqdm = options.disable_tqdm or options.progress_json
        self._values = values
        self._stdout = stdout

    def place(self, value: float, repeat: int, axis: str = "") -> Place:
        return Place(series=self.series, axis=axis or self._options.axis, value=value, repeat=repeat)

    def range(self) -> list[float]:
        """From one request at a time to all at once, which is what the server can do at most."""
        axis, points = self._options.axis, self._options.points
        self._stdout.write("the lowest and the highest load first\n")
        low = self.measure(self.place(1.0, sweep.RANGE, "max_concurrency"))
        high = self.measure(self.place(inf, sweep.RANGE, "request_rate"))
        if not (low.request_throughput and high.request_throughput):
            raise BadOption("--values: not a single request was answered, so that the range must be given")
        if axis == "request_rate":
            return sweep.spread(low.request_throughput, high.request_throughput, points, whole=False)
        return sweep.spread(1.0, max(2.0, sweep.highest_concurrency(high)), points, whole=True)

    def measure(self, place: Place) -> Point:
        """One run; its result goes where a single run's goes, under a label and into files of its own."""
        profile = self._profile(place)
        kind = "serve" if profile.users is None else "clients"
        result = generate.measure(kind, profile, self._options, self._stdout)
        self.interrupted = self.interrupted or result.cancelled
        delivery.write(result, self._options, place)
        point = sweep.point(place.value, result)
        rate = tables.number(point.request_throughput)
        self._stdout.write(f"{place.axis} {tables.number(place.value)}: {rate} requests/s\n")
        if self._options.cooldown and not self.interrupted:
            time.sleep(self._options.cooldown)
        return point

    def _profile(self, place: Place) -> Profile:
        """The seed is the same for all, and with it the schedule of a rate; the prompts are not."""
        given = declare.read(Profile, self._values)
        swept = {
            place.axis: place.value if place.axis == "request_rate" else int(place.value),
            "label": place.label(given.label),
            "prompt_seed": place.prompt_seed(given.seed if given.prompt_seed is None else given.prompt_seed),
        }
        return checked_profile({**self._values, **swept})


def _write_table(axis: str, found: list[Point], stdout: TextIO) -> None:
    stdout.write(f"\n{axis:<16}" + "".join(f"{title:>12}" for _, title in COLUMNS) + "  good  client\n")
    for one in found:
        cells = "".join(f"{tables.number(getattr(one, name)):>12}" for name, _ in COLUMNS)
        good = "-" if one.goodput is None else f"{one.goodput:.0%}"
        stdout.write(f"{tables.number(one.value):<16}{cells}  {good:>4}  {one.client}\n")
    if bend := sweep.knee(found):
        stdout.write(f"the knee is at {axis} {tables.number(bend.value)}\n")
    if best := sweep.highest_good(found, GOOD_SHARE):
        stdout.write(f"{GOOD_SHARE:.0%} of requests keep the limits up to {axis} {tables.number(best.value)}\n")


def _save(path: Path, axis: str, found: list[Point]) -> None:
    """Raises BadOption."""
    bend = sweep.knee(found)
    try:
        told = {"axis": axis, "knee": None if bend is None else bend.value, "points": msgspec.to_builtins(found)}
        write_json(path, told)
    except OSError as error:
        raise BadOption(f"--sweep-result: {error}") from None


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return value
