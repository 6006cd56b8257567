"""Questions of every kind, answered as a chat would: texts to read, and how fast they came."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.evals.datasets import SHIPPED, read_rows
from benchmarks.evals.evaluation import Document, Evaluation, Item

DRAWN = 128
MAX_TOKENS = 256


class _Row(msgspec.Struct):
    question: str


class Questions(Evaluation):
    name = "questions"
    help = "128 questions drawn by --seed, and answered: texts to read, and the throughput"
    figures = ("seconds_p50", "seconds_max")
    data = SHIPPED / "questions.jsonl"
    batch = 1  # so that each answer has a time of its own, and one that ends makes room for the next

    def read(self, path: Path) -> list[Document]:
        """Some of the file, none of them twice, in the order in which they are drawn."""
        known = read_rows(path, _Row, lambda index, row: Document(index=index, text=row.question))
        return random.Random(self.options.seed).sample(known, min(DRAWN, len(known)))

    def note(self, documents: Sequence[Document]) -> str:
        return "" if len(documents) == DRAWN else f"the file has {len(documents)} questions, fewer than {DRAWN}"

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        begun = time.perf_counter()
        choices = await self.completions.complete(
            [self.prompt(f"User: {document.text}\n\nAssistant:") for document in documents],
            max_tokens=self.options.max_tokens or MAX_TOKENS,
            temperature=1,
            top_p=0.6,
            seed=self.options.seed,
            stop=["\nUser:"],
        )
        seconds = time.perf_counter() - begun
        return [
            Item(
                doc=document.index,
                predicted=choice.text.strip(),
                tokens=choice.tokens or 0,
                details={"question": document.text, "finish_reason": choice.finish_reason, "seconds": seconds},
            )
            for document, choice in zip(documents, choices, strict=True)
        ]

    def summarise(self, items: Sequence[Item]) -> dict[str, Any]:
        times = sorted(item.details["seconds"] for item in items)
        return {"seconds_p50": times[len(times) // 2], "seconds_max": times[-1]}
