"""A stand-in model for tests of the scheduler, the step loop and the bus: it counts.

A row's next token is its last token plus one, so every output shows which row it belongs to and
whether a token was skipped, repeated or fed out of order.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from inference.bus.messages import ModelInfo, Sampling, TokenLogprobs
from inference.engine.backend import StepPlan, StepResult
from inference.engine.memory import Memory

VOCAB = 65536


class _Done:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class CountingBackend:
    name = "counting"
    device = "cpu"
    dtype = "int"
    model = ModelInfo(id="counting", layers=1, width=1, vocab=VOCAB, parameters=0, fingerprint="counting")

    def __init__(self, slots: int, *, overlap: bool = False) -> None:
        self.slots = slots
        self.overlap = overlap
        self.plans: list[StepPlan] = []
        self._last: dict[int, int] = {}
        self._fed: dict[int, list[int]] = {}
        self._stop_ids: dict[int, Sequence[int]] = {}

    def memory(self) -> Memory:
        return Memory(free=3, total=5)

    def open_slot(
        self,
        slot: int,
        sampling: Sampling,
        stop_ids: Sequence[int],
        generated: Sequence[int],
        prompt: Sequence[int],
    ) -> None:
        self._fed[slot] = []
        self._last.pop(slot, None)
        self._stop_ids[slot] = stop_ids

    def launch(self, plan: StepPlan) -> _Done:
        self.plans.append(plan)
        prompt_logprobs = {}
        for slot in plan.decode:
            if self._last[slot] not in self._stop_ids[slot]:
                self._fed[slot].append(self._last[slot])
        for chunk in plan.chunks:
            self._fed[chunk.slot] += chunk.tokens
            if chunk.prompt_logprobs >= 0:
                following = [*chunk.tokens[1:], chunk.next_token]
                scored = following[chunk.skipped :]
                prompt_logprobs[chunk.slot] = [TokenLogprobs(-float(token), []) for token in scored]
        tokens = {}
        for slot in plan.sampled_slots:
            tokens[slot] = self._last[slot] = self.next_token(self._fed[slot])
        logprobs = {slot: TokenLogprobs(-float(tokens[slot]), []) for slot in plan.logprobs}
        return _Done(StepResult(tokens, logprobs, prompt_logprobs))

    def next_token(self, fed: list[int]) -> int:
        return (fed[-1] + 1) % VOCAB

    def export_state(self, slot: int) -> dict[str, np.ndarray]:
        """What the slot was fed: this model remembers all of it."""
        return {"fed": np.array(self._fed[slot], dtype=np.uint32)}

    def import_state(self, slot: int, state: Mapping[str, np.ndarray]) -> None:
        self._fed[slot] = state["fed"].tolist()

    def copy_state(self, source: int, target: int) -> None:
        self._fed[target] = list(self._fed[source])
