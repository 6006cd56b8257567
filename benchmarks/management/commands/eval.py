import asyncio
import os
import signal
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from msgspec.structs import fields

from benchmarks.evals.datasets import PUBLIC
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Options
from benchmarks.evals.fetch import fetch
from benchmarks.evals.progress import Progress
from benchmarks.evals.registry import EVALS
from benchmarks.evals.runner import Plan, run
from benchmarks.evals.summary import Summary
from inference.api.edge import worker_key

INTERRUPTED = 130  # as a shell has it
OPTIONS = {field.name for field in fields(Options)}


class Command(BaseCommand):
    help = "Measure how right a server's answers are: LAMBADA, four-choice questions, consistency and others."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        tasks = parser.add_subparsers(dest="task", required=True, metavar="task")
        for name, kind in EVALS.items():
            _add_run_arguments(tasks.add_parser(name, help=kind.help), needs_data=kind.data is None)
        _add_fetch_arguments(tasks.add_parser("fetch", help="fetch a data set from the Hugging Face hub"))

    def handle(self, *, task: str, **options: Any) -> None:
        try:
            if task == "fetch":
                self._fetch(**options)
            else:
                self._run(task, **options)
        except EvalError as error:
            raise CommandError(str(error)) from None

    def _fetch(self, *, repo: str, file: str, output: Path, revision: str, sha256: str, **options: Any) -> None:
        checksum = fetch(repo, file, output, revision=revision, expected=sha256)
        self.stdout.write(f"{output}: sha256 {checksum}")

    def _run(self, task: str, *, base_url: str | None, api_key_env: str, **options: Any) -> None:
        own = settings.RWKV.base_url
        plan = Plan(
            eval=task,
            base_url=base_url or own,
            output=options["output"] or settings.RWKV.var_dir / "evals" / task,
            data=options["data"],
            sha256=options["sha256"],
            limit=options["limit"],
            model=options["model"],
            load=options["load_model"],
            allowed_hosts=tuple(options["allow_host"]),
            concurrency=options["concurrency"],
            batch=options["batch"],
            options=Options(**{name: options[name] for name in OPTIONS & options.keys()}),
        )
        if plan.load and not plan.model:
            raise CommandError("--load-model needs --model")
        progress = Progress(task, self._show, terminal=self.stderr.isatty())
        try:
            summary = asyncio.run(_until_stopped(plan, _key(api_key_env, plan.base_url == own), progress))
        except (KeyboardInterrupt, asyncio.CancelledError):
            message = f"interrupted: what was answered is in {plan.output}, and the same command goes on with it"
            raise CommandError(message, returncode=INTERRUPTED) from None
        finally:
            progress.close()
        self.stdout.write(f"{plan.output}")
        if summary.note:
            self.stdout.write(summary.note)
        self.stdout.write(summary.line())

    def _show(self, text: str) -> None:
        """As it is: Django would end each refresh of a bar with a new line, and show it as an error."""
        self.stderr.write(text, style_func=str, ending="")
        self.stderr.flush()


async def _until_stopped(plan: Plan, key: Callable[[], str], progress: Progress) -> Summary:
    """Run the plan; SIGTERM ends it as an interrupt from the keyboard does."""
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(plan, key=key, report=progress)


def _key(name: str, own_service: bool) -> Callable[[], str]:
    """The key of a request: that of the environment; towards this very service, a worker's as batches have it."""
    if given := os.environ.get(name, ""):
        return lambda: given
    return worker_key.issue if own_service else str


def _add_run_arguments(parser: ArgumentParser, *, needs_data: bool) -> None:
    add = parser.add_argument
    add("--base-url", help="of an OpenAI-compatible server (default: this service, by HOST and PORT)")
    add("--data", type=Path, required=needs_data, help="a file of documents" + ("" if needs_data else " (our own)"))
    add("--sha256", default="", help=f"refuse the file when its checksum is another; or {', '.join(PUBLIC)}")
    add("--limit", type=_count, help="the first documents alone")
    add("--output", type=Path, help="folder of the items and the summary; resumes there (VAR_DIR/evals/<task>)")
    add("--model", default="", help="the first one that is loaded, unless given")
    add("--load-model", action="store_true", help="have the service change to --model first")
    add("--allow-host", action="append", default=[], help="a host other than this machine that may be asked")
    add("--api-key-env", default="EVAL_API_KEY", help="environment variable that holds the key (EVAL_API_KEY)")
    add("--concurrency", type=_count, default=8, help="requests at one time (8)")
    add("--batch", type=_count, help="documents in one request")
    add("--prompts", choices=("ids", "text"), default="ids", help="ids of the RWKV World vocabulary, or text (ids)")
    add("--prefix", type=_prefix, default=0, help="token id in front of prompts of ids, or none (0)")
    add("--procedure", choices=("logprobs", "greedy"), default="logprobs", help="of lambada (logprobs)")
    add("--max-tokens", type=_count, help="of generated texts")
    add("--top", type=_count, default=5, help="candidates of next-token (5)")
    add("--window", type=_count, default=1024, help="tokens that bpb scores together (1024)")
    add("--repeats", type=_count, default=8, help="requests that consistency puts side by side (8)")
    add("--seed", type=int, default=0)


def _add_fetch_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("repo", help="as in EleutherAI/lambada_openai")
    parser.add_argument("file", help="its path in the data set")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--revision", default="main", help="branch, tag or commit (main)")
    parser.add_argument("--sha256", default="", help=f"refuse a file whose checksum is another; or {', '.join(PUBLIC)}")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _prefix(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise ArgumentTypeError(f"expected a token id or none, got {text!r}")
    return int(text)
