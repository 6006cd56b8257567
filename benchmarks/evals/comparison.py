"""Two runs over the same documents: which of them changed sides, and whether chance explains it."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.evals.models import EvalItem, EvalRun
from benchmarks.evals.statistics import mcnemar, paired_t

# Settings that make items of two runs answers to different questions.
ASKED = ("eval", "sha256", "prompts", "prefix", "procedure", "max_tokens", "window", "repeats", "seed")


@dataclass(frozen=True, slots=True)
class Flip:
    """A document that one run got right and the other did not."""

    doc: int
    won: bool  # wrong in the baseline, right now
    expected: str
    before: str
    after: str
    logprob_before: float | None
    logprob_after: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`lost` and `won` count the flips against the baseline. Both p-values are two-sided: `p` is McNemar's, exact, of
    the flips; `logprob_p` is Student's, of the paired changes of log probability, None without two of them."""

    baseline: EvalRun
    run: EvalRun
    common: int
    alone: int  # documents that only one of them has answered
    flips: list[Flip]
    mean_logprob_change: float | None
    largest_logprob_change: float | None
    logprob_p: float | None
    differences: list[tuple[str, Any, Any]]  # (setting, before, after) of what was asked otherwise

    @property
    def won(self) -> int:
        return sum(flip.won for flip in self.flips)

    @property
    def lost(self) -> int:
        return len(self.flips) - self.won

    @property
    def p(self) -> float:
        return mcnemar(self.lost, self.won)


def compare(baseline: EvalRun, run: EvalRun) -> Comparison:
    """By the documents that both have answered."""
    before, after = _items(baseline), _items(run)
    common = sorted(before.keys() & after.keys())
    changes = [
        after[doc].logprob - before[doc].logprob
        for doc in common
        if before[doc].logprob is not None and after[doc].logprob is not None
    ]
    return Comparison(
        baseline=baseline,
        run=run,
        common=len(common),
        alone=len(before.keys() ^ after.keys()),
        flips=[_flip(before[doc], after[doc]) for doc in common if _flipped(before[doc], after[doc])],
        mean_logprob_change=fmean(changes) if changes else None,
        largest_logprob_change=max(changes, key=abs) if changes else None,
        logprob_p=paired_t(changes),
        differences=_differences(baseline, run),
    )


def _items(run: EvalRun) -> dict[int, EvalItem]:
    return {item.doc: item for item in run.items.defer("details")}


def _flipped(before: EvalItem, after: EvalItem) -> bool:
    return None not in (before.correct, after.correct) and before.correct != after.correct


def _flip(before: EvalItem, after: EvalItem) -> Flip:
    return Flip(
        doc=before.doc,
        won=bool(after.correct),
        expected=before.expected,
        before=before.predicted,
        after=after.predicted,
        logprob_before=before.logprob,
        logprob_after=after.logprob,
    )


def _differences(baseline: EvalRun, run: EvalRun) -> list[tuple[str, Any, Any]]:
    before, after = baseline.summary.get("settings", {}), run.summary.get("settings", {})
    return [(name, before.get(name), after.get(name)) for name in ASKED if before.get(name) != after.get(name)]
