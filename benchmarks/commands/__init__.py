"""The subcommands of `manage.py bench`: a line in the table for each, and a module, imported when it is used.

A module has add_arguments(parser) and run(options, stdout), which returns the exit code.
"""

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Protocol, TextIO, cast

COMMANDS = {
    "serve": "Send requests at a rate, whatever the answers do, and measure them from the moment they were due.",
    "clients": "Let a fixed number of users ask, each again once it has its answer.",
    "multiturn": "Let users hold conversations. --stateful needs a back end with sessions, such as rwkv-state.",
    "sweep": "Measure at several loads, and tell where more load brings latency instead of throughput.",
    "compare": "Compare runs with a baseline. Runs of one label are repeats, whose scatter is the noise.",
    "gate": "Hold runs against limits. Exits with 1 when one is broken, with 2 when it cannot be told.",
    "export": "Write a result in another format.",
    "import": "Keep results in the database: ours, and those of vLLM, SGLang, guidellm, aiperf, api_bench_tools.",
    "cost": "Measure the generator: events per second and core, and the latency that it adds to paced streams.",
}
_MODULES = {"import": "import_"}  # where the name is a word of the language


class Subcommand(Protocol):
    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, options: Namespace, stdout: TextIO) -> int: ...


def load(name: str) -> Subcommand:
    return cast(Subcommand, import_module(f"benchmarks.commands.{_MODULES.get(name, name)}"))
