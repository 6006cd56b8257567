"""`bench clients`: a fixed number of users, as openppl's api_bench_tools has them."""

from argparse import ArgumentParser, Namespace
from typing import TextIO

from benchmarks.commands import generate

DEFAULTS = {"users": 100}


def add_arguments(parser: ArgumentParser) -> None:
    generate.add_arguments(parser)


def run(options: Namespace, stdout: TextIO) -> int:
    return generate.run("clients", generate.given_options(options, DEFAULTS), options, stdout)
