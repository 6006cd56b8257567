"""Simple generation: greedy continuations of short prompts, to read."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.evals.datasets import SHIPPED, read_rows
from benchmarks.evals.evaluation import Document, Evaluation, Item

MAX_TOKENS = 10


class _Row(msgspec.Struct):
    prompt: str


class Generate(Evaluation):
    name = "generate"
    help = "greedy continuations of short prompts"
    data = SHIPPED / "prompts.jsonl"

    def read(self, path: Path) -> list[Document]:
        return read_rows(path, _Row, lambda index, row: Document(index=index, text=row.prompt))

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        prompts = [self.prompt(document.text) for document in documents]
        count = self.options.max_tokens or MAX_TOKENS
        choices = await self.completions.complete(prompts, max_tokens=count)
        return [
            Item(doc=document.index, predicted=choice.text, details={"prompt": document.text})
            for document, choice in zip(documents, choices, strict=True)
        ]
