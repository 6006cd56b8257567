"""The plain PyTorch back end: the default on a CPU, and what faster back ends are compared with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference.bus.messages import Sampling
from inference.engine.backend import StepPlan, StepResult
from inference.engine.memory import Memory, host_memory
from inference.engine.model import Model, StatePool
from inference.engine.prompt_logprobs import PromptLogprobs, cut
from inference.engine.sampler import RankedTokens, Sampler
from inference.engine.slot_states import SlotStates
from inference.engine.weights import Checkpoint, Dimensions, Progress
from kernels.packed import PackedRows

IDLE_SLOTS = 16  # of idle sessions, beside those of running rows


@dataclass(slots=True)
class CompletedStep:
    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


class TorchBackend(SlotStates):
    """See `inference.engine.backend.Backend`. A step is complete when `launch` returns.

    `dtype` is that of weights and activations; the WKV state is float32, or float64 if `dtype` is. `slots=0` takes as
    many as free memory allows, within reason. Raises CheckpointError if the file cannot be served.
    """

    name = "torch"
    overlap = False

    def __init__(
        self,
        checkpoint: str | Path,
        slots: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        progress: Progress | None = None,
    ) -> None:
        opened = Checkpoint(checkpoint)
        sizes = opened.dimensions
        self.model = opened.info
        self.device = device
        self._device = torch.device(device)
        self._forward = Model(opened, self._device, dtype, progress)
        self.slots = slots or choose_slots(sizes, self._device, dtype)
        self._state = StatePool.zeros(sizes, self.slots, self._device, dtype)
        self._last_token = torch.zeros(self.slots, dtype=torch.int64, device=self._device)
        self._sampler = Sampler(self.slots, sizes.vocab, self._device)

    def memory(self) -> Memory:
        return Memory(*torch.cuda.mem_get_info(self._device)) if self._device.type == "cuda" else host_memory()

    def open_slot(
        self, slot: int, sampling: Sampling, stop_ids: Sequence[int], generated: Sequence[int], prompt: Sequence[int]
    ) -> None:
        self._state.shift[:, :, slot] = 0
        self._state.wkv[:, slot] = 0
        self._last_token[slot] = 0
        self._sampler.open_slot(slot, sampling, stop_ids, generated, prompt)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> CompletedStep:
        slots = plan.decode + [chunk.slot for chunk in plan.chunks]
        rows = PackedRows(slots, [1] * len(plan.decode) + [len(chunk.tokens) for chunk in plan.chunks], self._device)
        prompt = [token for chunk in plan.chunks for token in chunk.tokens]
        decode = torch.tensor(plan.decode, dtype=torch.int64, device=self._device)
        tokens = torch.cat((self._last_token[decode], torch.tensor(prompt, dtype=torch.int64, device=self._device)))
        hidden = self._forward.forward(tokens, self._state, rows)

        result = StepResult(tokens={})
        if plan.scores_prompts:
            scored = PromptLogprobs(
                plan.chunks, len(plan.decode), lambda at: self._forward.logits(hidden[at]), self._device
            )
            result.prompt_logprobs = scored.read()
        sampled = [True] * len(plan.decode) + [chunk.sample for chunk in plan.chunks]
        if any(sampled):
            self._draw(plan, hidden[rows.last[torch.tensor(sampled, device=self._device)]], result)
        return CompletedStep(result)

    def _draw(self, plan: StepPlan, hidden: Tensor, result: StepResult) -> None:
        """Draw a token from each of `hidden` [N, C], whose rows are `plan.sampled_slots`."""
        slots = plan.sampled_slots
        logits = self._forward.logits(hidden)
        drawn = self._sampler.draw(self._masked(logits, plan), slots)
        self._last_token[torch.tensor(slots, device=self._device)] = drawn
        wanted = [row for row, slot in enumerate(slots) if plan.logprobs.get(slot, -1) >= 0]
        if wanted:
            tops = [plan.logprobs[slots[row]] for row in wanted]
            found = RankedTokens(logits[wanted], drawn[wanted], max(tops)).read()
            for row, top, entry in zip(wanted, tops, found, strict=True):
                result.logprobs[slots[row]] = cut(entry, top)
        result.tokens = dict(zip(slots, drawn.tolist(), strict=True))

    def _masked(self, logits: Tensor, plan: StepPlan) -> Tensor:
        """The logits [N, V] of `plan.sampled_slots`, -inf where a row's mask bars an id."""
        if not plan.masks:
            return logits
        rows = [row for row, slot in enumerate(plan.sampled_slots) if slot in plan.masks]
        words = np.stack([plan.masks[plan.sampled_slots[row]] for row in rows])
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=logits.shape[1])
        barred = torch.from_numpy(bits == 0).to(self._device)
        masked = logits.clone()
        masked[rows] = logits[rows].masked_fill(barred, -math.inf)
        return masked


def slot_bytes(sizes: Dimensions, dtype: torch.dtype) -> int:
    """Memory one slot takes: its state, and the sampler's float32 penalty and one byte for each id."""
    state = StatePool.zeros(sizes, 1, torch.device("meta"), dtype)
    return state.shift.nbytes + state.wkv.nbytes + 5 * sizes.vocab


def choose_slots(sizes: Dimensions, device: torch.device, dtype: torch.dtype) -> int:
    """As many slots as fit into half of the memory that is free now; never more than are of use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading has left behind is free, too
        free, most = torch.cuda.mem_get_info(device)[0], 256 + IDLE_SLOTS
    else:
        memory, most = host_memory(), 64 + IDLE_SLOTS
        free = memory.free or memory.total // 2
    return max(1, min(most, free // 2 // slot_bytes(sizes, dtype)))
