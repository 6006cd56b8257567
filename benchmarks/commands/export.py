"""`bench export`: a result in another format."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TextIO

from benchmarks.commands.stored import load_all
from benchmarks.loadgen import exports
from benchmarks.loadgen.declare import BadOption


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", metavar="RESULT", help="result file of any known tool, or a run's number")
    parser.add_argument(
        "--format", choices=tuple(exports.FORMATS), required=True, help="csv has a row for each request"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(), metavar="PATH", help="folder, or the file for a single result (.)"
    )


def run(options: Namespace, stdout: TextIO) -> int:
    """Raises BadOption."""
    results = load_all(options.results)
    folder = options.output.is_dir()
    if len(results) > 1 and not folder:
        raise BadOption(f"--output: {options.output} is no folder, and there are {len(results)} results")
    for result in results:
        path = options.output / exports.file_name(result, options.format) if folder else options.output
        try:
            path.write_bytes(exports.export(result, options.format))
        except OSError as error:
            raise BadOption(f"--output: {error}") from None
        stdout.write(f"{path}\n")
    return 0
