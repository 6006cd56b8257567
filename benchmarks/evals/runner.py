"""Runs one eval from its data to its summary: bounded concurrency, items kept as they come, resumable."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.evals import registry
from benchmarks.evals.client import Client
from benchmarks.evals.completions import Completions
from benchmarks.evals.datasets import check_sha256, known_sha256
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Document, Evaluation, Options
from benchmarks.evals.journal import Header, Journal
from benchmarks.evals.summary import SPEEDS, Summary, read_speeds, write_summary
from benchmarks.evals.target import check_target, load_model, read_server


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    """One run. What changes its answers identifies it; how fast they are asked for does not."""

    eval: str
    base_url: str
    output: Path
    data: Path | None = None  # None: what ships with the project
    sha256: str = ""  # what the data must have, or the name of a public data set
    limit: int | None = None  # the first documents alone
    model: str = ""  # "": the first one that is loaded
    load: bool = False  # have the service change to the model first
    allowed_hosts: tuple[str, ...] = ()
    concurrency: int = 8  # requests at one time
    batch: int | None = None  # documents of one request; None: the eval's own
    options: Options = Options()


Report = Callable[[int, int], None]  # documents that are answered, and how many there are


async def run(plan: Plan, *, key: Callable[[], str] = str, report: Report = lambda done, total: None) -> Summary:
    """Run the plan, or go on with it. Raises EvalError; items and a summary of them are kept then, too."""
    base_url = check_target(plan.base_url, plan.allowed_hosts)
    kind = registry.find(plan.eval)
    path = plan.data or kind.data
    if path is None:
        raise EvalError(f"data: {plan.eval} needs a file")
    checksum = check_sha256(path, known_sha256(plan.sha256))
    reader = kind(plan.options)
    found = reader.read(path)
    documents, note = found[: plan.limit], reader.note(found)
    async with Client(base_url, key=key) as client:
        if plan.load:
            await load_model(client, plan.model)
        server = await read_server(client, plan.model)
        completions = Completions(client, server.model, skips_contexts=bool(server.fingerprint))
        settings = {
            "eval": plan.eval,
            "data": path.name,
            "sha256": checksum,
            "limit": plan.limit,
            **msgspec.to_builtins(server),
            **msgspec.to_builtins(plan.options),
        }
        header = Header(settings=settings, documents=len(documents), begun=datetime.now(UTC).isoformat())
        with Journal(plan.output, header) as journal:
            evaluation = kind(plan.options, completions)
            begun, problem = time.perf_counter(), ""
            try:
                await _answer_all(evaluation, documents, journal, plan, report)
            except BaseException as error:
                problem = _words(error)
                raise
            finally:
                speeds = _speeds(completions, journal, time.perf_counter() - begun) or read_speeds(plan.output)
                summary = _summarise(evaluation, documents, journal, note=note, error=problem, **speeds)
                write_summary(plan.output, summary)
    return summary


async def _answer_all(
    evaluation: Evaluation, documents: list[Document], journal: Journal, plan: Plan, report: Report
) -> None:
    open_documents = [document for document in documents if document.index not in journal.items]
    batches = iter(evaluation.batches(open_documents, plan.batch or evaluation.batch))
    report(len(journal.items), len(documents))

    async def work() -> None:
        for batch in batches:  # shared: each worker takes the next one
            journal.append(await evaluation.answer(batch))
            report(len(journal.items), len(documents))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(1 if evaluation.alone else plan.concurrency):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _words(error: BaseException) -> str:
    if isinstance(error, EvalError):
        return str(error)
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {error}"


def _speeds(completions: Completions, journal: Journal, seconds: float) -> dict[str, Any]:
    """The fields of `SPEEDS` by what this session has answered; {} if it has answered nothing."""
    answered = len(journal.items) - journal.resumed
    if not answered:
        return {}
    tokens = completions.prompt_tokens, completions.output_tokens
    values = (seconds, answered / seconds, tokens[0], tokens[0] / seconds, tokens[1], tokens[1] / seconds)
    return dict(zip(SPEEDS, values, strict=True))


def _summarise(
    evaluation: Evaluation, documents: list[Document], journal: Journal, *, error: str, **fields: Any
) -> Summary:
    items = [journal.items[document.index] for document in documents if document.index in journal.items]
    return Summary(
        eval=evaluation.name,
        status="failed" if error else "completed",
        error=error,
        n=len(items),
        documents=len(documents),
        resumed=journal.resumed,
        settings=journal.header.settings,
        figures=evaluation.summarise(items) if items else {},
        **fields,
    )
