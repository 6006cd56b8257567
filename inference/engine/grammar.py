"""Rows whose text follows a grammar: which ids each may draw next.

Compiling happens in a thread of its own, and a row waits for a slot until its grammar is ready. Masks
are filled by llguidance's threads, before the launch of the step that needs them.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from inference.grammars import GrammarCompiler, GrammarError

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


class RowGrammar:
    """One row's place in its grammar."""

    def __init__(self, matcher: "Future[LLMatcher]") -> None:
        self._matcher = matcher

    @property
    def ready(self) -> bool:
        return self._matcher.done()

    @property
    def matcher(self) -> "LLMatcher | None":
        """None if the grammar could not be compiled."""
        return None if self._matcher.exception() else self._matcher.result()

    @property
    def error(self) -> str:
        """Why the row cannot go on, "" if it can."""
        failure = self._matcher.exception()
        return str(failure) if failure else self._matcher.result().get_error()

    def advance(self, token: int) -> bool:
        """Account for a drawn id. True if the text is complete and nothing may follow it."""
        matcher = self._matcher.result()
        return matcher.consume_token(token) and matcher.is_stopped()


class Grammars:
    """Starts rows' grammars and fills their masks."""

    def __init__(self, compiler: GrammarCompiler, vocab: int) -> None:
        """`vocab`: how many ids the model's head has, and the compiler knows."""
        self._compiler = compiler
        self._words = -(-vocab // 32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._executor: LLExecutor | None = None
        self._thread.submit(compiler.prepare)  # if it fails, so does every row's own compilation

    def start(self, grammar: str, generated: Sequence[int]) -> RowGrammar:
        """A row that has drawn `generated` before."""
        return RowGrammar(self._thread.submit(self._begin, grammar, list(generated)))

    def masks(self, rows: Sequence[RowGrammar]) -> np.ndarray:
        """What each row may draw next: uint32 [N, ceil(V / 32)], id i at bit i % 32 of word i // 32.

        A row with an `error` may draw anything, since its draw is of no use.
        """
        matchers = [(matcher, index) for index, row in enumerate(rows) if (matcher := row.matcher)]
        found = np.full((len(rows), self._words), -1, dtype=np.int32)
        if matchers:
            from llguidance import LLExecutor
            from llguidance.numpy import fill_next_token_bitmask_par

            self._executor = self._executor or LLExecutor()
            fill_next_token_bitmask_par(self._executor, matchers, found)
        return found.view(np.uint32)

    def _begin(self, grammar: str, generated: list[int]) -> "LLMatcher":
        matcher = self._compiler.compile(grammar)
        if not matcher.consume_tokens(generated):
            raise GrammarError("the text so far does not follow the grammar")
        return matcher
