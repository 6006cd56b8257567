"""Problems with one right answer, solved in words: GSM8K (https://arxiv.org/abs/2110.14168) and MATH
(https://arxiv.org/abs/2103.03874). The end of the solution is compared with the end of the known one."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from benchmarks.evals.answers import final_boxed, final_number, same_expression, same_number
from benchmarks.evals.datasets import SHIPPED, read_rows
from benchmarks.evals.evaluation import Document, Evaluation, Item

SHOWN_CHARACTERS = 4000  # of a solution in its item


class _Row(msgspec.Struct):
    """One of `question` (GSM8K's name) and `problem` (MATH's)."""

    answer: str | int | float
    question: str = ""
    problem: str = ""


class ExactMatch(Evaluation):
    figures = ("acc",)
    max_tokens: ClassVar[int]
    opening: ClassVar[str]  # how the reply begins
    batch = 1  # solutions differ in length: one that ends makes room for the next

    def read(self, path: Path) -> list[Document]:
        return read_rows(path, _Row, self._document)

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        choices = await self.completions.complete(
            [self.prompt(f"User: {document.text}\n\nAssistant:{self.opening}") for document in documents],
            max_tokens=self.options.max_tokens or self.max_tokens,
            stop=["\nUser:"],
        )
        return [
            Item(
                doc=document.index,
                correct=self.judge(choice.text, document.answer),
                predicted=self.extract(choice.text),
                expected=document.answer,
                tokens=choice.tokens or 0,
                details={"solution": choice.text[-SHOWN_CHARACTERS:], "finish_reason": choice.finish_reason},
            )
            for document, choice in zip(documents, choices, strict=True)
        ]

    def extract(self, text: str) -> str:
        """The final answer of a solution; "" where it has none."""
        return final_number(text)

    def judge(self, solution: str, answer: str) -> bool:
        return same_number(self.extract(solution), answer)

    def _document(self, index: int, row: _Row) -> Document:
        text, answer = row.question or row.problem, self.known_answer(str(row.answer))
        if not text:
            raise ValueError("question: it is missing, or empty")
        if not answer:
            raise ValueError(f"answer: expected one with a number in it, got {row.answer!r}")
        return Document(index=index, text=text, answer=answer)

    def known_answer(self, text: str) -> str:
        return final_number(text)


class Gsm8k(ExactMatch):
    name = "gsm8k"
    help = "word problems: exact match of the final number"
    data = SHIPPED / "word_problems.jsonl"
    max_tokens = 512
    opening = ""


class Math(ExactMatch):
    name = "math"
    help = "mathematics: exact match of the boxed answer"
    data = SHIPPED / "mathematics.jsonl"
    max_tokens = 1500
    opening = " <think></think"  # a model that thinks begins its answer at once; the end of the tag is its own

    def extract(self, text: str) -> str:
        return final_boxed(text) or final_number(text)

    def judge(self, solution: str, answer: str) -> bool:
        return same_expression(self.extract(solution), answer)

    def known_answer(self, text: str) -> str:
        return final_boxed(text) or text.strip()
