"""The subcommands of `manage.py bench`, one module each, imported when it is used.

A module has HELP, add_arguments(parser) and run(options, stdout), which returns the exit code.
"""

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Protocol, TextIO, cast

COMMANDS = {
    "serve": "benchmarks.commands.serve",
    "clients": "benchmarks.commands.clients",
    "multiturn": "benchmarks.commands.multiturn",
    "sweep": "benchmarks.commands.sweep",
    "compare": "benchmarks.commands.compare",
    "gate": "benchmarks.commands.gate",
    "export": "benchmarks.commands.export",
    "import": "benchmarks.commands.import_",
    "cost": "benchmarks.commands.cost",
}


class Subcommand(Protocol):
    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, options: Namespace, stdout: TextIO) -> int: ...


def load(name: str) -> Subcommand:
    return cast(Subcommand, import_module(COMMANDS[name]))
