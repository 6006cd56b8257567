"""What every eval is: documents in, items out, figures at the end."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from benchmarks.evals.completions import Completions, Prompt
from benchmarks.evals.statistics import accuracy
from inference.text.tokenizer import get_tokenizer

GROUP_CHARACTERS = 200  # at most, in the name of a group


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """How the questions are put. Part of what a run is identified by; each eval reads the ones it knows."""

    prompts: Literal["ids", "text"] = "ids"  # ids are those of the RWKV World vocabulary
    prefix: int | None = 0  # the token in front of every prompt of ids; 0 is the end of a text
    procedure: Literal["logprobs", "greedy"] = "logprobs"
    max_tokens: int | None = None  # None: the eval's own
    top: int = 5
    window: int = 1024
    repeats: int = 8
    seed: int = 0


class Document(msgspec.Struct, kw_only=True, frozen=True):
    """One question of a data set. `index` counts from 0 and names it for good."""

    index: int
    text: str = ""
    ids: tuple[int, ...] = ()  # where the document is a piece of a longer text, which may end within a character
    answer: str = ""
    choices: tuple[str, ...] = ()
    group: str = ""


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came of one document. `correct` and `logprob` are None where the eval has no such thing."""

    doc: int
    correct: bool | None = None
    logprob: float | None = None  # natural logarithm, summed over the scored tokens
    predicted: str = ""
    expected: str = ""
    tokens: int = 0  # scored or generated
    group: str = ""
    details: dict[str, Any] = {}


class Evaluation(ABC):
    """Adding one is a module with a subclass, and a line in `registry`."""

    name: ClassVar[str]
    help: ClassVar[str]
    data: ClassVar[Path | None] = None  # the file that ships with the project
    figures: ClassVar[tuple[str, ...]] = ()  # numbers of the summary that rules may name
    batch: ClassVar[int] = 16  # documents of one request
    alone: ClassVar[bool] = False  # one request after another, whatever the concurrency

    def __init__(self, options: Options, completions: Completions | None = None) -> None:
        self.options = options
        self._completions = completions
        if options.prompts != "text":
            get_tokenizer()  # reading the vocabulary takes a while, which is no part of the answering

    @property
    def completions(self) -> Completions:
        assert self._completions is not None, "made to read documents alone"
        return self._completions

    @abstractmethod
    def read(self, path: Path) -> list[Document]:
        """All documents of a file. Raises EvalError, which names the line."""

    def note(self, documents: Sequence[Document]) -> str:
        """What is worth knowing of all documents of a file; mostly nothing."""
        return ""

    @abstractmethod
    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        """An item for each document, by one request where that is possible. Raises EvalError."""

    def batches(self, documents: Sequence[Document], size: int) -> list[Sequence[Document]]:
        """Which documents go into one request."""
        return [documents[begin : begin + size] for begin in range(0, len(documents), size)]

    def summarise(self, items: Sequence[Item]) -> dict[str, Any]:
        """The figures of all items, of which there is one at least."""
        return accuracy(items)

    def prompt(self, text: str) -> Prompt:
        """A text in the form that the options ask for, behind the prefix token."""
        return text if self.options.prompts == "text" else [*self.prefix, *get_tokenizer().encode(text)]

    def continuation(self, text: str) -> Prompt:
        """As `prompt`, for a text that follows a prompt."""
        return text if self.options.prompts == "text" else get_tokenizer().encode(text)

    @property
    def prefix(self) -> list[int]:
        return [] if self.options.prefix is None else [self.options.prefix]
