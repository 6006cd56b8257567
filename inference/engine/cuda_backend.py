"""The CUDA back end: our kernels, fp16 weights, and decode steps that are replayed from CUDA graphs.

A step of decodes alone is one graph launch: forward pass, sampling, and the drawn ids fed back on the
device. A step with prompt chunks runs the same kernels one by one over all its rows. Nothing waits
for the device before a step's result is asked for, which the step loop does one step later.
"""

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.bus.messages import Sampling
from inference.engine.backend import StepPlan, StepResult
from inference.engine.cuda_model import CudaModel, CudaState
from inference.engine.cuda_sampler import CudaSampler
from inference.engine.prompt_logprobs import PromptLogprobs, cut
from inference.engine.sampler import RankedTokens
from inference.engine.slot_states import SlotStates
from inference.engine.weights import Checkpoint, Dimensions, Progress
from kernels.packed import DeviceRows

MOST_SLOTS = 1040  # unless ENGINE_SLOTS asks for more: 1024 running rows and 16 idle sessions
WORKSPACE_BYTES = 8 * 2**30  # activations, logits and graphs
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
        self._forward = CudaModel(opened, self._device, progress)
        self.slots = slots or choose_slots(sizes, self._device, dtype)
        self._state = CudaState.zeros(sizes, self.slots + 1, self._device, dtype)  # the last one is the dummy
        self._sampler = CudaSampler(self.slots, sizes.vocab, self._device)
        self._staging = [torch.empty(self.slots, dtype=torch.int32).pin_memory() for _ in range(RESULTS_IN_FLIGHT)]
        self._fresh: set[int] = set()  # slots whose states are still those of the rows before
        self._steps = 0
        self._graphs = capture_graphs(self._forward, self._state, self._sampler, self.slots)
        self._graph_sizes = sorted(self._graphs)

    def open_slot(
        self, slot: int, sampling: Sampling, stop_ids: Sequence[int], generated: Sequence[int], prompt: Sequence[int]
    ) -> None:
        self._sampler.open_slot(slot, sampling, stop_ids, generated, prompt)
        self._fresh.add(slot)

    def _slot_state(self, slot: int) -> dict[str, Tensor]:
        self._clear_fresh()
        return super()._slot_state(slot)

    def _clear_fresh(self) -> None:
        if self._fresh:
            slots = _pinned(sorted(self._fresh)).to(self._device, non_blocking=True).long()
            self._state.shift.index_fill_(2, slots, 0)
            self._state.wkv.index_fill_(1, slots, 0)
            self._fresh.clear()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> "CudaStep":
        self._steps += 1
        self._clear_fresh()
        self._sampler.set_masks(plan.masks)
        if plan.chunks:
            return self._launch_mixed(plan)
        graph = self._graphs[self._graph_sizes[bisect.bisect_left(self._graph_sizes, len(plan.decode))]]
        rows = len(plan.decode)
        graph.slots[:rows].copy_(_pinned(plan.decode), non_blocking=True)
        graph.slots[rows:].fill_(self._sampler.dummy)
        graph.replay()
        return self._finish(plan, graph.logits[:rows], graph.tokens[:rows])

    def _launch_mixed(self, plan: StepPlan) -> "CudaStep":
        slots = _pinned(plan.decode + [chunk.slot for chunk in plan.chunks]).to(self._device, non_blocking=True)
        lengths = [1] * len(plan.decode) + [len(chunk.tokens) for chunk in plan.chunks]
        rows = DeviceRows.of_lengths(self._sampler.moving(slots), lengths)
        decodes = len(plan.decode)
        prompt = _pinned([token for chunk in plan.chunks for token in chunk.tokens])
        tokens = torch.empty(sum(lengths), dtype=torch.int32, device=self._device)
        tokens[:decodes] = self._sampler.last_token[rows.slots[:decodes].long()]
        tokens[decodes:].copy_(prompt, non_blocking=True)
        x, delta = self._forward.forward(tokens, self._state, rows)

        scored = None
        if plan.scores_prompts:
            scored = PromptLogprobs(
                plan.chunks, decodes, lambda at: self._forward.logits(x[at], delta[at]), self._device
            )
        sampled = [True] * decodes + [chunk.sample for chunk in plan.chunks]
        chosen = _pinned([row for row, wanted in enumerate(sampled) if wanted]).to(self._device, non_blocking=True)
        if not len(chosen):
            return CudaStep(plan, chosen, None, scored)
        last = rows.row_start[1:][chosen.long()].long() - 1
        logits = self._forward.logits(x[last], delta[last])
        drawn = self._sampler.draw(logits, rows.slots[chosen.long()])
        return self._finish(plan, logits, drawn, scored)

    def _finish(
        self, plan: StepPlan, logits: Tensor, drawn: Tensor, scored: PromptLogprobs | None = None
    ) -> "CudaStep":
        """Start the way to the host of the drawn ids, and of the logprobs that the plan wants."""
        ranked = None
        wanted = [row for row, slot in enumerate(plan.sampled_slots) if slot in plan.logprobs]
        if wanted:
            ranked = RankedTokens(
                logits[wanted], drawn[wanted].long().clamp_(min=0), max(plan.logprobs.values(), default=0)
            )
        host = self._staging[self._steps % RESULTS_IN_FLIGHT][: len(drawn)]
        host.copy_(drawn, non_blocking=True)
        return CudaStep(plan, host, ranked, scored)


class CudaStep:
    """A launched step; `result` waits until it has reached the host."""

    def __init__(
        self, plan: StepPlan, drawn: Tensor, ranked: RankedTokens | None, scored: PromptLogprobs | None
    ) -> None:
        self._plan = plan
        self._drawn = drawn
        self._ranked = ranked
        self._scored = scored
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def result(self) -> StepResult:
        self._arrived.synchronize()
        slots = self._plan.sampled_slots
        result = StepResult(dict(zip(slots, self._drawn.tolist(), strict=True)))
        if self._ranked:
            tops = {slot: self._plan.logprobs[slot] for slot in slots if slot in self._plan.logprobs}
            for (slot, top), entry in zip(tops.items(), self._ranked.read(), strict=True):
                result.logprobs[slot] = cut(entry, top)
        if self._scored:
            result.prompt_logprobs = self._scored.read()
        return result


class DecodeGraph:
    """A decode step of a fixed number of rows, recorded once. Fill `slots`, replay, read `tokens` and `logits`."""

    def __init__(self, model: CudaModel, state: CudaState, sampler: CudaSampler, rows: int, pool: Any) -> None:
        self.slots = torch.full((rows,), sampler.dummy, dtype=torch.int32, device=sampler.device)
        self._model, self._state, self._sampler = model, state, sampler
        self._packed = DeviceRows.single_tokens(torch.empty_like(self.slots))
        self._run()  # cuBLAS and the allocator set themselves up outside the recording
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self.logits, self.tokens = self._run()

    def replay(self) -> None:
        self._graph.replay()

    def _run(self) -> tuple[Tensor, Tensor]:
        rows = self._packed
        rows.slots = self._sampler.moving(self.slots)
        tokens = self._sampler.last_token[rows.slots.long()]
        logits = self._model.logits(*self._model.forward(tokens, self._state, rows))
        return logits, self._sampler.draw(logits, rows.slots)


def capture_graphs(model: CudaModel, state: CudaState, sampler: CudaSampler, slots: int) -> dict[int, DecodeGraph]:
    """One graph for each bucket of rows up to `slots`, the largest first so that the others reuse its memory."""
    pool = torch.cuda.graph_pool_handle()
    with torch.inference_mode():
        graphs = {rows: DecodeGraph(model, state, sampler, rows, pool) for rows in reversed(buckets(slots))}
    torch.cuda.synchronize()
    return graphs


def buckets(slots: int) -> list[int]:
    """Numbers of rows that have a graph: fine steps for few rows, then multiples of what fills product tiles."""
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, *range(80, 256, 16), *range(256, slots, 64)]
    return sorted({size for size in sizes if size < slots} | {slots})


def choose_slots(sizes: Dimensions, device: torch.device, state_dtype: torch.dtype) -> int:
    """As many slots as fit beside the workspace in the memory that is free now, up to MOST_SLOTS."""
    state = CudaState.zeros(sizes, 1, torch.device("meta"), state_dtype)
    slot_bytes = state.shift.nbytes + state.wkv.nbytes + 5 * sizes.vocab
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MOST_SLOTS, (free - WORKSPACE_BYTES) // slot_bytes))


def _pinned(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory()
