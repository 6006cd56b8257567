"""What a back end must do, and the plain data that passes between it and the step loop.

A back end owns the device: the weights, a pool of state slots, and for every slot its sampling
parameters and last drawn token. The step loop decides which slots move; the back end moves them.
Adding one is a module with a class of this shape and a line in `inference.engine.backends`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from inference.bus.messages import ModelInfo, Sampling, TokenLogprobs
from inference.engine.memory import Memory

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Chunk:
    """A piece of one row's prompt: fed to `slot` from left to right."""

    slot: int
    tokens: Sequence[int]
    sample: bool  # the prompt ends here: draw the row's first token from the last position's logits
    prompt_logprobs: int = -1  # top logprobs wanted at each position of the chunk; -1: none
    skipped: int = 0  # positions of the chunk whose logprobs are not wanted
    next_token: int = -1  # the prompt token behind the chunk, whose logprob the last position gives


@dataclass(slots=True)
class StepPlan:
    """One step: `decode` slots feed the token they drew last and draw another; `chunks` are prefilled."""

    decode: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    logprobs: dict[int, int] = field(default_factory=dict)  # slot -> top logprobs wanted
    # slot -> ids it may draw in this step: uint32 [ceil(V / 32)], id i at bit i % 32 of word i // 32
    masks: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def sampled_slots(self) -> list[int]:
        return self.decode + [chunk.slot for chunk in self.chunks if chunk.sample]

    @property
    def scores_prompts(self) -> bool:
        return any(chunk.prompt_logprobs >= 0 for chunk in self.chunks)

    def __bool__(self) -> bool:
        return bool(self.decode or self.chunks)


@dataclass(slots=True)
class StepResult:
    tokens: dict[int, int]  # slot -> drawn id, for each of plan.sampled_slots
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)  # slot -> of the chunk


class PendingStep(Protocol):
    def result(self) -> StepResult:
        """Wait until the step's ids have reached the host."""


class Backend(Protocol):
    name: str
    device: str
    model: ModelInfo
    slots: int
    overlap: bool  # True: a step may be launched before the result of the one before it is read

    @property
    def dtype(self) -> str:
        """Of weights and activations, and of the WKV states between steps where that is another one."""

    def memory(self) -> Memory:
        """Of the device, or of the machine where the device has none of its own. Called from another thread."""

    def open_slot(
        self, slot: int, sampling: Sampling, stop_ids: Sequence[int], generated: Sequence[int], prompt: Sequence[int]
    ) -> None:
        """Make `slot` a fresh row: zero state, its own sampling parameters and penalties.

        `generated` are ids drawn before (a resumed row): they count for penalties and position.
        `prompt` matters for the repetition penalty alone. With `overlap`, a row that draws one of
        `stop_ids` does not move its state any more, even if a later step still names it.
        """

    def launch(self, plan: StepPlan) -> PendingStep: ...

    def export_state(self, slot: int) -> Mapping[str, "torch.Tensor"]:
        """Copy a slot's state to the host: `shift` [L, 2, C] and `wkv` [L, H, 64, 64] (value, key).

        With `overlap` it may come later: looking at a tensor then waits for the copy, and raises RuntimeError if that
        has failed. The step loop does so only to put the state back.
        """

    def import_state(self, slot: int, state: Mapping[str, "torch.Tensor"]) -> None:
        """Put a state back. Raises ValueError, naming tensor and expected shape, if it does not fit."""

    def copy_state(self, source: int, target: int) -> None: ...
