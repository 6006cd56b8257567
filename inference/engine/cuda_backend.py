"""The CUDA back end: our kernels, fp16 weights, and decode steps that are replayed from CUDA graphs.

A step of decodes alone is one graph launch: forward pass, sampling, and the drawn ids fed back on the
device. A step with prompts is two. Nothing waits for the device before a step's result is asked for,
which the step loop does one step later.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan, StepResult
from inference.engine.coming_state import ComingState
from inference.engine.cuda_graphs import LAST_DRAWN, MOST_RECORDED_TOKENS, Graphs, fed_tokens
from inference.engine.cuda_model import CudaModel, CudaState
from inference.engine.cuda_sampler import CudaSampler
from inference.engine.memory import Memory
from inference.engine.prompt_logprobs import PromptLogprobs, cut
from inference.engine.sampler import RankedTokens
from inference.engine.slot_states import SlotStates
from inference.engine.state_copies import StateCopies
from inference.engine.weights import Checkpoint, Dimensions, Progress
from kernels.packed import DeviceRows

MOST_SLOTS = 1040  # unless ENGINE_SLOTS asks for more: 1024 running rows and 16 idle sessions
WORKSPACE_BYTES = 8 * 2**30  # activations, logits and graphs
WARM_UP_SAMPLING = Sampling(top_k=50, top_p=0.5, presence=1.0)
RESULTS_IN_FLIGHT = 3  # pinned buffers for drawn ids; the step loop holds at most two


class CudaBackend(SlotStates):
    """See `inference.engine.backend.Backend`.

    Weights and activations are float16. `dtype` is how WKV states are stored between steps, float16 or float32; their
    arithmetic is float32. `slots=0` takes as many as free memory allows, up to MOST_SLOTS.

    Raises CheckpointError if the file cannot be served, and torch.OutOfMemoryError if model or slots do not fit.
    """

    name = "cuda"
    overlap = True

    def __init__(
        self,
        checkpoint: str | Path,
        slots: int,
        device: str = "cuda",
        dtype: torch.dtype = torch.float16,
        progress: Progress | None = None,
    ) -> None:
        if dtype not in (torch.float16, torch.float32):
            raise ValueError(f"dtype: the cuda back end stores states as float16 or float32, not {dtype}")
        opened = Checkpoint(checkpoint)
        sizes = opened.dimensions
        self.model = opened.info
        self._device = torch.device(device if ":" in device else f"{device}:{torch.cuda.current_device()}")
        torch.cuda.set_device(self._device)
        self.device = str(self._device)
        torch.cuda.empty_cache()  # of a model that could not be loaded
        self._forward = CudaModel(opened, self._device, progress)
        self.slots = slots or choose_slots(sizes, self._device, dtype)
        self._state = CudaState.zeros(sizes, self.slots + 1, self._device, dtype)  # the last one is the dummy
        self._sampler = CudaSampler(self.slots, sizes.vocab, self._device)
        self._staging = [torch.empty(self.slots, dtype=torch.int32).pin_memory() for _ in range(RESULTS_IN_FLIGHT)]
        self._fresh: set[int] = set()  # slots whose states are still those of the rows before
        self._copies = StateCopies(self._slot_state(0))
        self._steps = 0
        self._graphs = Graphs(self._forward, self._state, self._sampler, self.slots)
        self._warm_up()

    def memory(self) -> Memory:
        return Memory(*torch.cuda.mem_get_info(self._device))

    def open_slot(
        self, slot: int, sampling: Sampling, stop_ids: Sequence[int], generated: Sequence[int], prompt: Sequence[int]
    ) -> None:
        self._sampler.open_slot(slot, sampling, stop_ids, generated, prompt)
        self._fresh.add(slot)

    def export_state(self, slot: int) -> ComingState:
        return self._copies.export(self._slot_state(slot))

    def import_state(self, slot: int, state: Mapping[str, Tensor]) -> None:
        self._copies.import_into(self._slot_state(slot), state)

    def _slot_state(self, slot: int) -> dict[str, Tensor]:
        self._clear_fresh()
        return super()._slot_state(slot)

    def _clear_fresh(self) -> None:
        if self._fresh:
            slots = self._upload(sorted(self._fresh)).long()
            # As large words: PyTorch fills element by element.
            self._state.shift.view(torch.int64).index_fill_(2, slots, 0)
            self._state.wkv.view(torch.int64).index_fill_(1, slots, 0)
            self._fresh.clear()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> "CudaStep":
        self._steps += 1
        self._clear_fresh()
        self._sampler.set_masks(plan.masks)
        if plan.chunks:
            return self._launch_mixed(plan)
        rows = len(plan.decode)
        graph = self._graphs.decode(rows)
        graph.slots[:rows].copy_(_pinned(plan.decode), non_blocking=True)
        graph.slots[rows:].fill_(self._sampler.dummy)
        graph.replay()
        return self._finish(plan, graph.logits, graph.tokens)

    def _launch_mixed(self, plan: StepPlan) -> "CudaStep":
        slots = plan.decode + [chunk.slot for chunk in plan.chunks]
        lengths = [1] * len(plan.decode) + [len(chunk.tokens) for chunk in plan.chunks]
        x, y, rows = self._advance_mixed(plan, slots, lengths)
        drawing = [True] * len(plan.decode) + [chunk.sample for chunk in plan.chunks]
        if plan.scores_prompts:
            return self._score(plan, x, y, rows, drawing)
        graph = self._graphs.ends(lengths)
        graph.fill(x, y, slots, lengths, drawing)
        graph.replay()
        return self._finish(plan, graph.logits, graph.tokens, rows=[row for row, draws in enumerate(drawing) if draws])

    def _score(self, plan: StepPlan, x: Tensor, y: Tensor, rows: DeviceRows, drawing: Sequence[bool]) -> "CudaStep":
        """The rest of a step in which the logits of all positions are wanted."""
        x, delta = self._forward.finish(x, y, self._state, rows)
        scored = PromptLogprobs(
            plan.chunks, len(plan.decode), lambda at: self._forward.logits(x[at], delta[at]), self._device
        )
        chosen = self._upload([row for row, draws in enumerate(drawing) if draws]).long()
        if not len(chosen):
            return CudaStep(plan, chosen, [], None, scored)
        last = rows.row_start[1:][chosen].long() - 1
        logits = self._forward.logits(x[last], delta[last])
        drawn = self._sampler.draw(logits, rows.slots[chosen])
        return self._finish(plan, logits, drawn, scored=scored)

    def _advance_mixed(
        self, plan: StepPlan, slots: Sequence[int], lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor, DeviceRows]:
        """What `CudaModel.finish` takes, and the rows it is of: the decodes, then the chunks."""
        ids = [LAST_DRAWN] * len(plan.decode) + [token for chunk in plan.chunks for token in chunk.tokens]
        if len(ids) <= MOST_RECORDED_TOKENS:
            graph = self._graphs.prompt(len(ids))
            graph.given.fill(slots, lengths, ids)
            graph.replay()
            return graph.x, graph.y, graph.rows
        rows = DeviceRows.of_lengths(self._sampler.moving(self._upload(slots)), lengths)
        tokens = fed_tokens(self._upload(ids), rows, self._sampler)
        return *self._forward.advance(tokens, self._state, rows), rows

    def _finish(
        self,
        plan: StepPlan,
        logits: Tensor,
        drawn: Tensor,
        *,
        rows: Sequence[int] | None = None,
        scored: PromptLogprobs | None = None,
    ) -> "CudaStep":
        """Start the way to the host of the drawn ids, and of the logprobs that the plan wants.

        `rows`: which of `logits` and `drawn` are those of the plan's sampled slots; None: the first ones.
        """
        slots = plan.sampled_slots
        rows = range(len(slots)) if rows is None else rows
        ranked = None
        wanted = [row for row, slot in zip(rows, slots, strict=True) if slot in plan.logprobs]
        if wanted:
            chosen = self._upload(wanted).long()
            ranked = RankedTokens(
                logits[chosen], drawn[chosen].long().clamp_(min=0), max(plan.logprobs.values(), default=0)
            )
        count = max(rows, default=-1) + 1
        host = self._staging[self._steps % RESULTS_IN_FLIGHT][:count]
        host.copy_(drawn[:count], non_blocking=True)
        return CudaStep(plan, host, rows, ranked, scored)

    def _warm_up(self) -> None:
        """Run what a first step would have to load, and take the memory that a large one needs: no request waits so."""
        slots = range(min(self.slots, MOST_RECORDED_TOKENS))
        for slot in slots:
            self.open_slot(slot, WARM_UP_SAMPLING, [], [], [])
        self.launch(StepPlan(chunks=[Chunk(slot, [0], sample=True) for slot in slots], logprobs={0: 1})).result()
        self.launch(StepPlan(decode=list(slots), logprobs={0: 1})).result()

    def _upload(self, values: Sequence[int]) -> Tensor:
        return _pinned(values).to(self._device, non_blocking=True)


class CudaStep:
    """A launched step; `result` waits until it has reached the host."""

    def __init__(
        self,
        plan: StepPlan,
        drawn: Tensor,
        rows: Sequence[int],
        ranked: RankedTokens | None,
        scored: PromptLogprobs | None,
    ) -> None:
        self._plan = plan
        self._drawn = drawn
        self._rows = rows  # of `drawn`, those of the plan's sampled slots
        self._ranked = ranked
        self._scored = scored
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def result(self) -> StepResult:
        self._arrived.synchronize()
        slots = self._plan.sampled_slots
        drawn = self._drawn.tolist()
        result = StepResult({slot: drawn[row] for slot, row in zip(slots, self._rows, strict=True)})
        if self._ranked:
            tops = {slot: self._plan.logprobs[slot] for slot in slots if slot in self._plan.logprobs}
            for (slot, top), entry in zip(tops.items(), self._ranked.read(), strict=True):
                result.logprobs[slot] = cut(entry, top)
        if self._scored:
            result.prompt_logprobs = self._scored.read()
        return result


def choose_slots(sizes: Dimensions, device: torch.device, state_dtype: torch.dtype) -> int:
    """As many slots as fit beside the workspace in the memory that is free now, up to MOST_SLOTS."""
    state = CudaState.zeros(sizes, 1, torch.device("meta"), state_dtype)
    slot_bytes = state.shift.nbytes + state.wkv.nbytes + 5 * sizes.vocab
    torch.cuda.empty_cache()  # what loading has left behind is free, too
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MOST_SLOTS, (free - WORKSPACE_BYTES) // slot_bytes))


def _pinned(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory()
