import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from benchmarks import commands
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.probe import NotReady

UNUSABLE = 2  # as argparse exits for options that it refuses itself


class Command(BaseCommand):
    help = "Load a server and measure it, and work with what was measured."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", required=True, parser_class=_LazyParser)
        for name, words in commands.COMMANDS.items():
            subparsers.add_parser(name, subcommand=name, help=words, description=words)

    def handle(self, *, subcommand: str, **options: Any) -> None:
        try:
            code = commands.load(subcommand).run(Namespace(**options), self.stdout)
        except BadOption as error:
            raise CommandError(str(error), returncode=UNUSABLE) from None
        except NotReady as error:
            raise CommandError(str(error)) from None
        if code:
            sys.exit(code)


class _LazyParser(CommandParser):
    """A subcommand's parser, which imports it only when it is the one that was called."""

    def __init__(self, *, subcommand: str, **options: Any) -> None:
        super().__init__(**options)
        self._subcommand: str | None = subcommand

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Namespace | None = None) -> Any:
        if self._subcommand:
            module = commands.load(self._subcommand)
            self._subcommand = None
            module.add_arguments(self)
        return super().parse_known_args(args, namespace)
