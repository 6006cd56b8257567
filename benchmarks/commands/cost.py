"""`bench cost`: what the generator itself costs, so that one knows what its figures are worth."""

from argparse import ArgumentParser, Namespace
from typing import Any, TextIO

from benchmarks.arguments import output_file
from benchmarks.commands.tables import number
from benchmarks.loadgen import cost
from benchmarks.loadgen.declare import BadOption
from benchmarks.output_files import write_json

COLUMNS = ("streams", "events/s", "per core/s", "CPU %", "added p50 ms", "added p99 ms", "loop p99 ms")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--streams", nargs="+", type=int, default=list(cost.STREAMS), metavar="N", help="at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each (5)")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the streams (1)")
    parser.add_argument("--output", type=output_file, help="also write the figures to this JSON file")


def run(options: Namespace, stdout: TextIO) -> int:
    if options.workers < 1 or options.seconds <= 0 or min(options.streams) < 1:
        raise BadOption("--streams, --seconds and --workers must be above 0")
    stdout.write(f"paced streams of {1 / cost.INTERVAL_SECONDS:g} events/s, {options.workers} client process(es)\n")
    found = cost.measure(options.streams, seconds=options.seconds, workers=options.workers)
    stdout.write("".join(f"{title:>14}" for title in COLUMNS) + "  client\n")
    for case in found["cases"]:
        stdout.write("".join(f"{cell:>14}" for cell in _cells(case)) + f"  {case['verdict']}\n")
        for reason in case["reasons"]:
            stdout.write(f"  {reason}\n")
    if options.output:
        try:
            write_json(options.output, found)
        except OSError as error:
            raise BadOption(f"--output: {error}") from None
    return 0


def _cells(case: dict[str, Any]) -> list[str]:
    added = case["added_latency_ms"]
    figures = (
        case["streams"],
        case["events_per_second"]["seen"],
        case["events_per_core_second"],
        case["cpu_percent"],
        added["median"],
        added["p99"],
        case["loop_lag_p99_ms"],
    )
    return [number(figure) for figure in figures]
