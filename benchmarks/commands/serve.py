"""`bench serve`: requests by the clock, as `vllm bench serve` sends them."""

from argparse import ArgumentParser, Namespace
from typing import TextIO

from benchmarks.commands import generate
from benchmarks.loadgen.declare import BadOption


def add_arguments(parser: ArgumentParser) -> None:
    generate.add_arguments(parser)


def run(options: Namespace, stdout: TextIO) -> int:
    values = generate.given_options(options, {})
    if values.get("users") is not None:
        raise BadOption("--users belongs to `bench clients` and `bench multiturn`")
    return generate.run("serve", values, options, stdout)
