import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.evals.runner import Plan, run
from benchmarks.evals.summary import Summary
from inference.text.tokenizer import get_tokenizer
from tests.evals.foreign import Foreign, running_foreign
from tests.evals.leaning_model import make_leaning_checkpoint
from tests.service import Service

if TYPE_CHECKING:
    from benchmarks.evals.models import EvalSweep

WORDS = (" door", " bread", " garden", " lighthouse", " Constantinople")
# They end differently, because a random model looks at the last words above all.
SENTENCES = (
    "The old man put down his hat, looked at the wall, and at last he saw the",
    "She had not thought of it for years.\n\n“And yet,” she said, “I dream of my",
    "Nobody in the village knew why the dog always barked at that",
    "It rained. It rained the whole night, and in the morning there was no",
    "Of all that they carried over the hills the heaviest thing was a",
    "Two of them stayed behind to watch 月亮 and",
    "He wrote café, naïve and Zürich on the paper, and then he drew another",
    "When the train stopped between two fields, each of the children saw his",
)


@pytest.fixture(scope="session")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents of our own, with words of one token and of several."""
    path = tmp_path_factory.mktemp("passages") / "passages.jsonl"
    texts = [sentence + word for sentence in SENTENCES for word in WORDS]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="session")
def leaning_checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    path = tmp_path_factory.mktemp("leaning") / "rwkv7-leaning.pth"
    make_leaning_checkpoint(tiny_checkpoint, path, WORDS)
    return path


@pytest.fixture(scope="session")
def leaning(tmp_path_factory: pytest.TempPathFactory, leaning_checkpoint: Path) -> Iterator[Service]:
    """A service whose model gets some of the passages right."""
    service = Service(tmp_path_factory.mktemp("var"), MODEL=str(leaning_checkpoint))
    try:
        yield service.wait_until_healthy()
    finally:
        service.stop()


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    with running_foreign() as server:
        yield server


@pytest.fixture
def sweep(foreign: Foreign, passages: Path) -> "EvalSweep":
    """A sweep of LAMBADA over the passages, without entries; the test needs a database."""
    from benchmarks import datafiles
    from benchmarks.evals.models import EvalSweep
    from benchmarks.models import Target

    datafiles.folder().mkdir(parents=True, exist_ok=True)
    shutil.copy(passages, datafiles.folder() / "passages.jsonl")
    target = Target.objects.create(name="foreign", base_url=foreign.url)
    sweep = EvalSweep(name="nightly", task="lambada", target=target, data="passages.jsonl", concurrency=2)
    sweep.full_clean()
    sweep.save()
    return sweep


Answered = tuple[Summary, dict[int, dict[str, Any]]]


@pytest.fixture
def run_eval(tmp_path: Path) -> Callable[..., Answered]:
    """Run a plan in this process; its summary, and the items by document."""

    def run_eval(eval: str, base_url: str, **fields: Any) -> Answered:
        output = fields.pop("output", tmp_path / "out")
        summary = asyncio.run(run(Plan(eval=eval, base_url=base_url, output=output, **fields)))
        return summary, read_items(output)

    return run_eval


def read_items(output: Path) -> dict[int, dict[str, Any]]:
    """The items of a run's file, each of which must be there once."""
    lines = [json.loads(line) for line in (output / "items.jsonl").read_text().splitlines()[1:]]
    items = {line["doc"]: line for line in lines}
    assert len(items) == len(lines), "a document was answered twice"
    return items


def right_at(likes: int) -> int:
    """How many of the passages a foreign server gets right."""
    return 8 * sum(all(token % likes == 0 for token in get_tokenizer().encode(word)) for word in WORDS)
