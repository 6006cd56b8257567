"""Four-choice questions as in MMLU (https://arxiv.org/abs/2009.03300): the letter the model finds most likely.

The prompt asks for the letter, and the log probabilities of " A" to " D" behind it decide. They are
read from the most likely next tokens; where one of the four is not among these, all four are scored.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.evals.completions import Choice
from benchmarks.evals.datasets import SHIPPED, read_rows
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import GROUP_CHARACTERS, Document, Evaluation, Item

LETTERS = ("A", "B", "C", "D")
TOP = 20  # the most that the OpenAI-compatible servers give


class _Row(msgspec.Struct):
    """As JSON with `choices`, or as CSV with a column for each letter."""

    question: str
    answer: int | str  # a number from 0, or a letter
    choices: list[str] = []
    subject: str = ""
    A: str = ""
    B: str = ""
    C: str = ""
    D: str = ""


class Mmlu(Evaluation):
    name = "mmlu"
    help = "four-choice questions: accuracy, and by subject"
    figures = ("acc",)
    data = SHIPPED / "four_choice.jsonl"

    def read(self, path: Path) -> list[Document]:
        return read_rows(path, _Row, _document)

    async def answer(self, documents: Sequence[Document]) -> list[Item]:
        prompts = [self.prompt(document.text) for document in documents]
        choices = await self.completions.complete(prompts, max_tokens=1, logprobs=TOP, ignore_eos=True)
        found = [_letters(choice) for choice in choices]
        missing = [place for place, letters in enumerate(found) if len(letters) < len(LETTERS)]
        pairs = [(prompts[place], self.continuation(f" {letter}")) for place in missing for letter in LETTERS]
        if pairs:
            scores = iter(await self.completions.score(pairs))
            for place in missing:
                found[place] = {letter: next(scores).logprob for letter in LETTERS}
        return [_item(document, letters) for document, letters in zip(documents, found, strict=True)]


def _letters(choice: Choice) -> dict[str, float]:
    """The log probabilities of those letters that are among the most likely tokens."""
    top = choice.logprobs and choice.logprobs.top_logprobs
    if not top or not top[0]:
        raise EvalError("the server gives no logprobs, by which four-choice questions are decided")
    return {letter: top[0][f" {letter}"] for letter in LETTERS if f" {letter}" in top[0]}


def _item(document: Document, letters: dict[str, float]) -> Item:
    best = max(letters, key=letters.__getitem__)
    return Item(
        doc=document.index,
        correct=best == document.answer,
        logprob=letters[document.answer],
        predicted=best,
        expected=document.answer,
        tokens=1,
        group=document.group,
        details={"logprobs": letters},
    )


def _document(index: int, row: _Row) -> Document:
    choices = row.choices or [row.A, row.B, row.C, row.D]
    if len(choices) != len(LETTERS) or not all(choices):
        raise ValueError(f"choices: expected {len(LETTERS)} texts")
    # A CSV has the number as text.
    number = int(row.answer) if str(row.answer).isdecimal() else -1
    letter = LETTERS[number] if 0 <= number < len(LETTERS) else row.answer
    if letter not in LETTERS:
        raise ValueError(f"answer: expected a letter from A to D or a number from 0 to 3, got {row.answer!r}")
    if len(row.subject) > GROUP_CHARACTERS:
        raise ValueError(f"subject: expected at most {GROUP_CHARACTERS} characters, got {len(row.subject)}")
    lines = [f"{name}. {_plain(text)}" for name, text in zip(LETTERS, choices, strict=True)]
    subject = row.subject.replace("_", " ") or "everything"
    head = f"User: You are a very talented expert in {subject}. Answer this question:\n{_plain(row.question)}"
    text = "\n".join([head, *lines]) + "\n\nAssistant: The answer is"
    return Document(index=index, text=text, answer=str(letter), group=row.subject)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
