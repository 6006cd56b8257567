"""Where a result goes: files, the database, the terminal."""

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TextIO

import msgspec

from benchmarks.commands import tables
from benchmarks.loadgen import results
from benchmarks.loadgen.declare import BadOption, flag
from benchmarks.loadgen.exports import pytorch_json
from benchmarks.loadgen.exports.vllm_json import file_name, to_vllm
from benchmarks.loadgen.records import RunResult
from benchmarks.loadgen.sweep import Place
from benchmarks.output_files import writable

PYTORCH_VARIABLE = "SAVE_TO_PYTORCH_BENCHMARK_FORMAT"  # as vLLM names it: a twin beside its JSON is wanted


def add_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--result", type=Path, metavar="PATH", help="write everything that was measured to this file")
    group.add_argument("--save-result", action="store_true", help="write vLLM's result JSON")
    group.add_argument("--save-detailed", action="store_true", help="in it, keep lists with an entry per request")
    group.add_argument("--append-result", action="store_true", help="add a line to the file instead of a new one")
    group.add_argument("--result-dir", type=Path, default=Path(), help="folder of that file (.)")
    group.add_argument("--result-filename", metavar="NAME", help="default: from label, rate, model and time")
    group.add_argument("--no-store", action="store_true", help="do not keep the run in the database")
    group.add_argument("--run-id", default="", metavar="KEY", help="of a run that the caller keeps itself")
    group.add_argument("--progress-json", action="store_true", help="write a JSON object per line instead of words")
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress")


def check(options: Namespace, **others: Path | None) -> None:
    """Raises BadOption for a place that could not be written to: before the load, which would be for nothing.

    `others` are files of the command's own, by the name of their option.
    """
    files = {"result": options.result, **others}
    if options.save_result or options.append_result:
        files["result_dir"] = options.result_dir / (options.result_filename or "result.json")
    for name, path in files.items():
        try:
            if path:
                writable(path)
        except OSError as error:
            raise BadOption(f"{flag(name)}: {error.filename}: {error.strerror}") from None
    if _is_stored(options):
        _check_database()


def deliver(result: RunResult, options: Namespace, stdout: TextIO) -> None:
    """Write `result` wherever the options say, and tell about it. Raises BadOption."""
    if options.progress_json:
        write(result, options)
        path = None if options.result is None else str(options.result)
        stdout.write(json.dumps({"event": "result", "path": path, "run_id": result.run_id}) + "\n")
        return
    stdout.write(tables.summary(result))
    for place in write(result, options):
        stdout.write(f"{place}\n")


def write(result: RunResult, options: Namespace, place: Place | None = None) -> list[str]:
    """Write `result` to the files and into the database, and return where. Raises BadOption.

    A run of a sweep has a `place`, and with it files of its own.
    """
    places = []
    try:
        if options.result:
            path = _own(options.result, place)
            results.save(result, path)
            places.append(f"written to {path}")
        if options.save_result or options.append_result:
            places.append(f"written to {_save_vllm(result, options, place)}")
    except OSError as error:
        raise BadOption(f"--result: {error}") from None
    if _is_stored(options):
        places.append(f"stored as run {_store(result, place)}")
    return places


def _save_vllm(result: RunResult, options: Namespace, place: Place | None) -> Path:
    path = options.result_dir / (options.result_filename or file_name(result))
    if not options.append_result:
        path = _own(path, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = msgspec.json.encode(to_vllm(result, detailed=options.save_detailed)) + b"\n"
    with path.open("ab" if options.append_result else "wb") as file:
        file.write(line)
    if os.environ.get(PYTORCH_VARIABLE):
        path.with_suffix(".pytorch.json").write_bytes(pytorch_json.write(result))
    return path


def _own(path: Path, place: Place | None) -> Path:
    return path.with_stem(f"{path.stem}-{place.name}") if place else path


def _is_stored(options: Namespace) -> bool:
    return not (options.no_store or options.run_id)


def _check_database() -> None:
    """Raises BadOption."""
    from django.db import DatabaseError, connection

    from benchmarks.models import Run

    try:
        Run.objects.exists()
    except DatabaseError as error:
        raise BadOption(f"--no-store was not given, and the database cannot be used: {error}") from error
    if not connection.in_atomic_block:
        connection.close()  # a load may take hours, and a database may end what is idle for so long


def _store(result: RunResult, place: Place | None) -> int:
    """Raises BadOption."""
    # Only here is the database needed: a run that is not to be kept works without one.
    from django.db import DatabaseError

    from benchmarks.storage import store_result

    try:
        return store_result(result, place=place)
    except DatabaseError as error:
        raise BadOption(f"--no-store was not given, and the run could not be stored: {error}") from error
