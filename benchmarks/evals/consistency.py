"""Does the company a request has change its answer? It must not, and mistakes in batching show here.

Every prompt gets three checks: the same seed twice; alone and as one of several prompts of a request;
alone and while the server is answering other requests. What differs is an item that is not correct.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.evals.datasets import SHIPPED, read_rows
from benchmarks.evals.evaluation import Document, Evaluation, Item

MAX_TOKENS = 32
LOAD_TOKENS = 16  # times as many tokens as a prompt under test gets are asked for by its company
CHECKS = ("seed", "batch", "load")


class _Row(msgspec.Struct):
    prompt: str


class Consistency(Evaluation):
    name = "consistency"
    help = "the same answer twice: by seed, in a batch, and under load"
    figures = ("acc",)
    data = SHIPPED / "prompts.jsonl"
    batch = 1
    alone = True

    def read(self, path: Path) -> list[Document]:
        prompts = read_rows(path, _Row, lambda index, row: row.prompt)
        return [
            Document(index=index * len(CHECKS) + number, text=prompt, group=check)
            for index, prompt in enumerate(prompts)
            for number, check in enumerate(CHECKS)
        ]

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        return [await self._check(document) for document in documents]

    async def _check(self, document: Document) -> Item:
        expected, found = await getattr(self, f"_{document.group}")(document.text)
        return Item(
            doc=document.index,
            correct=found == expected,
            predicted=found,
            expected=expected,
            group=document.group,
            details={"prompt": document.text},
        )

    async def _seed(self, text: str) -> tuple[str, str]:
        fields = {"temperature": 1, "seed": self.options.seed}
        return await self._alone(text, **fields), await self._alone(text, **fields)

    async def _batch(self, text: str) -> tuple[str, str]:
        expected = await self._alone(text)
        others = [self.prompt(other) for other in self._others()]
        place = len(others) // 2
        prompts = [*others[:place], self.prompt(text), *others[place:]]
        choices = await self.completions.complete(prompts, max_tokens=self._count)
        return expected, choices[place].text

    async def _load(self, text: str) -> tuple[str, str]:
        expected = await self._alone(text)
        try:
            async with asyncio.TaskGroup() as load:
                found = await self._in_company(text, load)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return expected, found

    async def _in_company(self, text: str, load: asyncio.TaskGroup) -> str:
        """The answer while the server is answering all the others, which nobody reads to their ends."""
        others = []
        begun = [(self.prompt(other), asyncio.Event()) for other in self._others()]
        for prompt, event in begun:
            long = {"max_tokens": LOAD_TOKENS * self._count, "ignore_eos": True}
            others.append(load.create_task(self.completions.hold(prompt, event, **long)))
        for _, event in begun:
            await event.wait()
        found = await self._alone(text)
        for task in others:
            task.cancel()
        return found

    async def _alone(self, text: str, **fields: Any) -> str:
        (choice,) = await self.completions.complete([self.prompt(text)], **{"max_tokens": self._count, **fields})
        return choice.text

    def _others(self) -> list[str]:
        """Prompts of different lengths, the same ones each time."""
        draw = random.Random(self.options.seed)
        return [" ".join(str(draw.randrange(1000)) for _ in range(3 + 5 * n)) for n in range(self.options.repeats - 1)]

    @property
    def _count(self) -> int:
        return self.options.max_tokens or MAX_TOKENS
