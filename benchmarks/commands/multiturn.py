"""`bench multiturn`: users who hold conversations, with their whole history or in sessions that the server keeps."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import msgspec

from benchmarks import output_files
from benchmarks.commands import delivery, generate, turns_table
from benchmarks.loadgen import exports
from benchmarks.loadgen.datasets import conversations
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.options import Profile, checked_profile
from benchmarks.loadgen.plan import make_plan
from benchmarks.loadgen.records import RunResult
from benchmarks.loadgen.transcripts import Transcript, mismatches, transcripts

RETRIES_VARIABLE = "MULTITURN_BENCH_MAX_RETRIES"  # as vLLM's script names it
DEFAULTS = {"users": 1, "backend": "openai-chat", "num_turns": 4, "random_input_len": 64}


def add_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("conversations")
    group.add_argument("-o", "--output-file", type=Path, metavar="PATH", help="write the conversations with answers")
    group.add_argument("--verify-output", action="store_true", help="fail unless answers are those of the data set")
    group.add_argument("--print-content", action="store_true", help="show the conversations with answers")
    group.add_argument("--stats-json-output", type=Path, metavar="PATH", help="write vLLM's object for each turn")
    group.add_argument("-e", "--excel-output", action="store_true", help="write a workbook into --result-dir")
    generate.add_arguments(parser)


def run(options: Namespace, stdout: TextIO) -> int:
    """Raises BadOption, and probe.NotReady."""
    profile = checked_profile(_values(options))
    delivery.check(options, output_file=options.output_file, stats_json_output=options.stats_json_output)
    expected = conversations.answers(Path(profile.dataset_path)) if options.verify_output else {}
    result = generate.measure("multiturn", profile, options, stdout)
    delivery.deliver(result, options, stdout)
    if not options.progress_json:
        stdout.write(turns_table.table(result.records))
    _write_files(result, options)
    return max(generate.exit_code(result), _tell_content(profile, result, expected, options, stdout))


def _values(options: Namespace) -> dict[str, Any]:
    values = generate.given_options(options, DEFAULTS)
    values.setdefault("dataset_name", "conversations" if values.get("dataset_path") else "synthetic_conversations")
    if values.get("stateful") and "backend" not in vars(options):
        values["backend"] = "rwkv-state"
    if RETRIES_VARIABLE in os.environ:
        values.setdefault("max_retries", os.environ[RETRIES_VARIABLE])
    if "request_rate" in values:
        values["think_time"] = _think_time(values)
    if options.verify_output and values["dataset_name"] != "conversations":
        raise BadOption("--verify-output needs conversations of a file: --input-file")
    values["keep_text"] = values.get("keep_text") or _wants_content(options)
    return values


def _think_time(values: dict[str, Any]) -> float:
    """vLLM's rate of each client between an answer and the next question; 0 is none to wait for."""
    if "think_time" in values:
        raise BadOption("--request-rate and --think-time say the same: give one of them")
    given = values.pop("request_rate")
    try:
        rate = float(given)
    except ValueError:
        raise BadOption(f"--request-rate: {given!r} is no number") from None
    if not rate >= 0:
        raise BadOption(f"--request-rate: {given!r} is below 0")
    return 1 / rate if rate else 0.0


def _wants_content(options: Namespace) -> bool:
    return bool(options.output_file or options.verify_output or options.print_content)


def _write_files(result: RunResult, options: Namespace) -> None:
    files = {options.stats_json_output: "multiturn"} if options.stats_json_output else {}
    if options.excel_output:
        files[options.result_dir / exports.file_name(result, "xlsx")] = "xlsx"
    for path, name in files.items():
        _write(path, exports.export(result, name))


def _tell_content(
    profile: Profile, result: RunResult, expected: Mapping[str, list[str]], options: Namespace, stdout: TextIO
) -> int:
    """What was said, wherever it is wanted. Returns FAILED if answers were to be verified and one is another."""
    if not _wants_content(options):
        return 0
    found = transcripts(make_plan(profile), result)  # the plan follows from the options alone
    if options.output_file:
        said = [{"id": one.conversation.id, "messages": one.messages()} for one in found]
        _write(options.output_file, msgspec.json.format(msgspec.json.encode(said)))
    if options.print_content:
        for one in found:
            stdout.write(_readable(one))
    if not options.verify_output:
        return 0
    wrong = list(mismatches(found, expected))
    stdout.write("".join(f"{line}\n" for line in wrong) or "every answer is the data set's\n")
    return generate.FAILED if wrong else 0


def _readable(one: Transcript) -> str:
    lines = [f"{message['role']}: {message['content']}" for message in one.messages()]
    return "\n".join([f"--- {one.conversation.id}", *lines, ""])


def _write(path: Path, content: bytes) -> None:
    """Raises BadOption."""
    try:
        output_files.write(path, content)
    except OSError as error:
        raise BadOption(f"{path}: {error.strerror}") from None
