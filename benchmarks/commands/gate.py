"""`bench gate`: hold a run against limits, for a pipeline that must stop at a regression."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TextIO

from benchmarks.commands.stored import load_all
from benchmarks.loadgen import compare, gates
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.gates import Outcome

EXIT_CODES = {Outcome.PASS: 0, Outcome.WARN: 0, Outcome.FAIL: 1, Outcome.UNKNOWN: 2}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="+", metavar="RESULT", help="result file or a run's number; several are repeats of one run"
    )
    parser.add_argument(
        "--baseline", nargs="+", default=[], metavar="RESULT", help="what a rule in percent is measured against"
    )
    parser.add_argument(
        "--rule", action="append", default=[], metavar="RULE", help="ttft.p99<=500 or output_throughput>=-5%%; repeated"
    )
    parser.add_argument("--rules", type=Path, metavar="FILE", help="a rule on each line; # begins a comment")


def run(options: Namespace, stdout: TextIO) -> int:
    """Raises BadOption."""
    try:
        rules = [gates.parse(rule) for rule in (*options.rule, *_lines(options.rules))]
    except ValueError as error:
        raise BadOption(f"--rule: {error}") from None
    if not rules:
        raise BadOption("--rule: there is none")
    candidate = compare.Group("the run", load_all(options.results))
    baseline = compare.Group("the baseline", load_all(options.baseline)) if options.baseline else None
    found = gates.evaluate(rules, candidate, baseline)
    for result in found:
        stdout.write(f"{result.outcome.upper():<15}{result.rule!s:<32}{result.words}\n")
    return EXIT_CODES[gates.worst(found)]


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BadOption(f"--rules: {path}: {error.strerror}") from None
    return [rule for line in lines if (rule := line.partition("#")[0].strip())]
