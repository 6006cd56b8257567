"""What the commands share that generate a load: their options, an orderly Ctrl-C, and what becomes of the result."""

import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from benchmarks.commands import delivery, display
from benchmarks.loadgen import declare, foreign, runner, verdict
from benchmarks.loadgen.datasets.source import read_json
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.options import Profile, checked_profile
from benchmarks.loadgen.records import RunResult

FAILED = 1
INTERRUPTED = 130  # as a shell names the end by Ctrl-C


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON of options by name; others come before it")
    declare.add_arguments(parser, Profile)
    delivery.add_arguments(parser)
    foreign.add_arguments(parser)


def given_options(options: Namespace, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name: of the command line, else of --config, else the command's own defaults. Raises BadOption."""
    configured = read_json(options.config) if options.config else {}
    if not isinstance(configured, dict):
        raise BadOption(f"--config: {options.config} holds no JSON object")
    known = declare.known_names(Profile)
    if unknown := sorted(configured.keys() - known):
        raise BadOption(f"--config: {unknown[0]!r} is not an option")
    given = {name: value for name, value in vars(options).items() if name in known}
    if options.save_detailed:
        given["keep_text"] = True  # vLLM's detailed result holds the answers
    return {**defaults, **configured, **given}


def run(kind: str, values: Mapping[str, Any], options: Namespace, stdout: TextIO) -> int:
    """One load from options to exit code. Raises BadOption, and probe.NotReady."""
    profile = checked_profile(values)
    delivery.check(options)
    result = measure(kind, profile, options, stdout)
    delivery.deliver(result, options, stdout)
    return exit_code(result)


def exit_code(result: RunResult) -> int:
    if result.cancelled:
        return INTERRUPTED
    return FAILED if verdict.failure(result) else 0


def measure(kind: str, profile: Profile, options: Namespace, stdout: TextIO) -> RunResult:
    """Generate the load, and show how it stands. The first Ctrl-C ends it with what there is; a second one at once."""
    report = display.choose(stdout, as_json=options.progress_json, silent=options.disable_tqdm)
    with _interruptible() as interrupted:
        result = runner.run(profile, kind=kind, run_id=options.run_id, report=report, cancelled=interrupted.is_set)
    if not (options.progress_json or options.disable_tqdm):
        display.finish()
    return result


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; then they have their old meaning again."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # signals are the main thread's
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        restore()

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield interrupted
    finally:
        restore()
