"""`bench import`: results of other tools, or of other machines, into the history."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TextIO

from benchmarks.commands.stored import read_file
from benchmarks.loadgen import imports


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file may hold several runs")
    parser.add_argument("--format", choices=tuple(imports.FORMATS), help="default: recognised by the content")


def run(options: Namespace, stdout: TextIO) -> int:
    """All files are read before the first run is stored. What is there already stays as it is.

    Raises BadOption.
    """
    from benchmarks.models import Origin, Run
    from benchmarks.storage import store_result

    results = [result for path in options.files for result in read_file(path, options.format)]
    for result in results:
        known = Run.objects.filter(key=result.run_id).first()
        if known:
            stdout.write(f"run {known.pk}: {result.run_id} was there already\n")
        else:
            stdout.write(f"run {store_result(result, origin=Origin.IMPORT)}: {result.run_id}\n")
    return 0
