"""`bench compare`: runs against a baseline."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TextIO

import msgspec

from benchmarks.commands.stored import load_all
from benchmarks.loadgen import compare, figures
from benchmarks.loadgen.declare import BadOption


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", metavar="RESULT", help="result file of any known tool, or a run's number")
    parser.add_argument("--baseline", metavar="LABEL", help="label or run id of the baseline; default: the first")
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help="figures to compare, such as ttft.p99; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="write JSON instead of tables")


def run(options: Namespace, stdout: TextIO) -> int:
    """Raises BadOption."""
    groups = compare.group(load_all(options.results))
    baseline = _baseline(groups, options.baseline)
    others = [one for one in groups if one is not baseline]
    if not others:
        raise BadOption("RESULT: there is nothing to compare: all results are repeats of one label")
    try:
        found = compare.compare(baseline, others, options.metric or figures.USUAL)
    except ValueError as error:
        raise BadOption(f"--{error}") from None
    if options.json:
        stdout.write(json.dumps(msgspec.to_builtins(found), indent=2) + "\n")
    else:
        for one in found:
            _write_table(one, baseline, stdout)
    return 0


def _baseline(groups: Sequence[compare.Group], wanted: str | None) -> compare.Group:
    if wanted is None:
        return groups[0]
    for one in groups:
        if wanted == one.label or wanted in (result.run_id for result in one.results):
            return one
    raise BadOption(f"--baseline: {wanted!r} is none of {', '.join(one.label for one in groups)}")


def _write_table(found: compare.Comparison, baseline: compare.Group, stdout: TextIO) -> None:
    stdout.write(f"\n{found.label} against {baseline.label}\n")
    for warning in found.warnings:
        stdout.write(f"  ! {warning}\n")
    for option, (old, new) in found.configuration.items():
        stdout.write(f"  {option}: {old} -> {new}\n")
    stdout.write(
        f"  {'figure':<24}{'unit':<11}{'baseline':>12}{'value':>12}{'change':>9}  {'95% interval':<20}verdict\n"
    )
    for change in found.changes:
        if change.baseline is not None or change.value is not None:
            stdout.write(f"  {_line(change)}\n")


def _line(change: compare.Change) -> str:
    relative = "" if change.change is None else f"{change.change:+.1%}"
    interval = "" if change.low is None or change.high is None else f"{change.low:+.1%} to {change.high:+.1%}"
    verdict = f"{change.verdict}" + (f" (by {change.method})" if change.method else "")
    values = f"{_number(change.baseline):>12}{_number(change.value):>12}"
    return f"{change.figure.name:<24}{change.figure.unit:<11}{values}{relative:>9}  {interval:<20}{verdict}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
