"""LAMBADA: the last word of a passage (https://arxiv.org/abs/1606.06031), on the split that OpenAI made.

A passage is split at its last space. Teacher-forced: the log probability of the last word's tokens,
correct when each of them is the most likely one; perplexity is per document. Greedy: the tokens that
the model continues with, which are the same ones as long as all of them are right, so that accuracy
is exact without log probabilities. From a server with another vocabulary, whose tokens nobody can count,
as many are taken as any word may have, and the text's first words are compared.

Context and word are tokenised apart, which gives the same ids as both together wherever no token of
the vocabulary has a space within it: in the World vocabulary, all of this split.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.evals.datasets import read_rows
from benchmarks.evals.evaluation import Document, Evaluation, Item
from benchmarks.evals.statistics import accuracy, perplexity
from inference.text.tokenizer import get_tokenizer

TEXT_TOKENS = 16  # twice as many as the longest word of the split has in the World vocabulary


class _Row(msgspec.Struct):
    text: str


class Lambada(Evaluation):
    name = "lambada"
    help = "the last word of passages: accuracy and perplexity"
    figures = ("acc", "ppl")

    def read(self, path: Path) -> list[Document]:
        return read_rows(path, _Row, _document)

    def batches(self, documents: Sequence[Document], size: int) -> list[Sequence[Document]]:
        if self.options.procedure == "logprobs" or self.options.prompts == "text":
            return super().batches(documents, size)
        # Greedily, all documents of a request get as many tokens, which must be as many as their words have.
        by_length: dict[int, list[Document]] = defaultdict(list)
        for document in documents:
            by_length[len(get_tokenizer().encode(document.answer))].append(document)
        return [batch for _, group in sorted(by_length.items()) for batch in super(Lambada, self).batches(group, size)]

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        if self.options.procedure == "greedy":
            return await self._answer_greedily(documents)
        pairs = [(self.prompt(document.text), self.continuation(document.answer)) for document in documents]
        scores = await self.completions.score(pairs)
        return [
            Item(
                doc=document.index,
                correct=score.greedy,
                logprob=score.logprob,
                predicted=document.answer if score.greedy else score.best,  # of equals, the server names any
                expected=document.answer,
                tokens=score.tokens,
            )
            for document, score in zip(documents, scores, strict=True)
        ]

    async def _answer_greedily(self, documents: Sequence[Document]) -> list[Item]:
        by_text = self.options.prompts == "text"
        tokens = TEXT_TOKENS if by_text else len(get_tokenizer().encode(documents[0].answer))
        prompts = [self.prompt(document.text) for document in documents]
        choices = await self.completions.complete(prompts, max_tokens=tokens)
        return [
            Item(
                doc=document.index,
                # The same text in as many tokens is the same tokens, in all but odd cases: the vocabulary
                # could spell the word with as many other pieces.
                correct=begins_with(choice.text, document.answer) if by_text else choice.text == document.answer,
                predicted=choice.text,
                expected=document.answer,
                tokens=tokens,
            )
            for document, choice in zip(documents, choices, strict=True)
        ]

    def summarise(self, items: Sequence[Item]) -> dict[str, Any]:
        return {**accuracy(items), **perplexity([item.logprob for item in items if item.logprob is not None])}


def begins_with(text: str, words: str) -> bool:
    """Whether the first words of `text` are these, whatever space is around them: of "door.", but not of "doors"."""
    plain = re.escape(" ".join(words.split()))
    return re.match(rf"{plain}(?!['’-]?\w)", " ".join(text.split())) is not None


def _document(index: int, row: _Row) -> Document:
    context, space, word = row.text.rpartition(" ")
    if not context or not word:
        raise ValueError("text: expected a passage that ends with a word behind a space")
    return Document(index=index, text=context, answer=space + word)
