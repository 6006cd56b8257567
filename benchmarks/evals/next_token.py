"""Next-token analysis: the most likely continuations of each prompt, with their probabilities."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.evals.datasets import SHIPPED, read_rows
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Document, Evaluation, Item


class _Row(msgspec.Struct):
    prompt: str


class NextToken(Evaluation):
    name = "next-token"
    help = "the most likely next tokens of prompts, with their probabilities"
    data = SHIPPED / "prompts.jsonl"

    def read(self, path: Path) -> list[Document]:
        return read_rows(path, _Row, lambda index, row: Document(index=index, text=row.prompt))

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        prompts = [self.prompt(document.text) for document in documents]
        choices = await self.completions.complete(prompts, max_tokens=1, logprobs=self.options.top, ignore_eos=True)
        items = []
        for document, choice in zip(documents, choices, strict=True):
            top = choice.logprobs and choice.logprobs.top_logprobs
            if not top or not top[0]:
                raise EvalError("the server gives no logprobs, which next-token analysis is made of")
            ranked = sorted(top[0].items(), key=lambda candidate: -candidate[1])
            items.append(
                Item(
                    doc=document.index,
                    logprob=ranked[0][1],
                    predicted=ranked[0][0],
                    tokens=1,
                    details={
                        "prompt": document.text,
                        "top": [{"token": token, "p": math.exp(logprob)} for token, logprob in ranked],
                    },
                )
            )
        return items
