"""Bits per byte: how well the model predicts a text, comparable between vocabularies. Lower is better."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.evals.datasets import read_text
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Document, Evaluation, Item
from benchmarks.evals.statistics import ratio
from inference.text.tokenizer import get_tokenizer


class BitsPerByte(Evaluation):
    name = "bpb"
    help = "bits per byte of a text file"
    figures = ("bits_per_byte",)
    batch = 2

    def read(self, path: Path) -> list[Document]:
        """Windows of `options.window` tokens, each read from a fresh state behind the prefix token."""
        if self.options.prompts == "text" or self.options.prefix is None:
            raise EvalError("bpb scores the first token of each window, too: it needs --prompts ids and a prefix token")
        ids, size = get_tokenizer().encode(read_text(path)), self.options.window
        if not ids:
            raise EvalError(f"data: {path} is empty")
        return [
            Document(index=number, ids=tuple(ids[begin : begin + size]))
            for number, begin in enumerate(range(0, len(ids), size))
        ]

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        scores = await self.completions.score([(self.prefix, list(document.ids)) for document in documents])
        return [
            Item(
                doc=document.index,
                logprob=score.logprob,
                tokens=score.tokens,
                details={"bytes": len(get_tokenizer().decode_bytes(document.ids))},
            )
            for document, score in zip(documents, scores, strict=True)
        ]

    def summarise(self, items: Sequence[Item]) -> dict[str, Any]:
        sizes = [item.details["bytes"] for item in items]
        logprobs = [item.logprob or 0.0 for item in items]
        tokens = sum(item.tokens for item in items)
        value, interval = ratio([-logprob / math.log(2) for logprob in logprobs], sizes)
        return {
            "bits_per_byte": value,
            "bits_per_byte_ci95": interval,  # over the windows
            "bytes": sum(sizes),
            "tokens": tokens,
            "ppl_per_token": math.exp(-sum(logprobs) / tokens),
        }
