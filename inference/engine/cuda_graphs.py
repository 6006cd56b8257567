"""Steps that are recorded as CUDA graphs: launching one costs the host next to nothing, however many kernels it has.

Launching them one by one takes some 15 ms, and several times that while other threads want the interpreter. A recorded
step also knows no product of a shape that cuBLAS has not met before: loading the kernel for one waits for the GPU.
"""

import bisect
import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from inference.engine.cuda_model import CudaModel, CudaState
from inference.engine.cuda_products import logits_room
from inference.engine.cuda_sampler import CudaSampler
from kernels.packed import PAD_TOKENS, DeviceRows, RecordedRows, end_positions

MOST_RECORDED_TOKENS = 4096
LAST_DRAWN = -1  # in place of an id: the token that the row's slot drew last

Results = TypeVar("Results")


class DecodeGraph:
    """A decode step of a fixed number of rows, up to the draws. Fill `slots`, replay, read `tokens` and `logits`.

    `logits` [rows, V], where those of all such steps go: they are good until the next one.
    """

    def __init__(self, model: CudaModel, state: CudaState, sampler: CudaSampler, logits: Tensor, pool: Any) -> None:
        rows = len(logits)
        self.slots = torch.full((rows,), sampler.dummy, dtype=torch.int32, device=sampler.device)
        self.logits = logits
        self._model, self._state, self._sampler = model, state, sampler
        self._packed = DeviceRows.single_tokens(torch.empty_like(self.slots))
        self.replay, self.tokens = _recorded(self._run, pool)

    def _run(self) -> Tensor:
        rows = self._packed
        rows.slots = self._sampler.moving(self.slots)
        tokens = self._sampler.last_token[rows.slots.long()]
        self._model.logits(*self._model.forward(tokens, self._state, rows), self.logits)
        return self._sampler.draw(self.logits, rows.slots)


class PromptGraph:
    """A fixed number of tokens, of any rows, up to `CudaModel.finish`. Fill `given`, replay, read `x`, `y` and `rows`.

    `rows` are those of `given` with the dummy in place of slots that are done.
    """

    def __init__(self, model: CudaModel, state: CudaState, sampler: CudaSampler, tokens: int, pool: Any) -> None:
        most_rows = min(tokens, sampler.dummy + -(-tokens // PAD_TOKENS))
        self.given = RecordedRows(tokens, most_rows, sampler.dummy, sampler.device)
        self._model, self._state, self._sampler = model, state, sampler
        self.replay, (self.x, self.y, self.rows) = _recorded(self._run, pool)

    def _run(self) -> tuple[Tensor, Tensor, DeviceRows]:
        rows: DeviceRows = copy.copy(self.given)
        rows.slots = self._sampler.moving(self.given.slots)
        x, y = self._model.advance(fed_tokens(self.given.ids, rows, self._sampler), self._state, rows)
        return x, y, rows


class EndsGraph:
    """What is left of a step with prompts behind its PromptGraph, up to the draws, for a fixed number of positions.

    These are the `end_positions` of its rows. `fill`, replay, read `tokens` and `logits`, which are good until the next
    step: by row, those that do not draw included.
    """

    def __init__(
        self, model: CudaModel, state: CudaState, sampler: CudaSampler, inputs: Tensor, logits: Tensor, pool: Any
    ) -> None:
        """`inputs` [2, positions, C] and `logits` [positions, V] may be shared by all such steps."""
        positions = len(logits)  # at most as many rows
        self.logits = logits
        self._x, self._y = inputs
        self._model, self._state, self._sampler = model, state, sampler
        self._given = RecordedRows(positions, positions, sampler.dummy, sampler.device)
        self._drawing = torch.full_like(self._given.slots, sampler.dummy)
        self.replay, self.tokens = _recorded(self._run, pool)

    def fill(self, x: Tensor, y: Tensor, slots: Sequence[int], lengths: Sequence[int], drawing: Sequence[bool]) -> None:
        """x, y [T, C]: what `CudaModel.finish` takes, of rows with these slots and lengths; `drawing`: which draw."""
        positions, kept = end_positions(lengths)
        self._given.fill(slots, kept, positions)
        dummy = self._sampler.dummy
        drawing_slots = [slot if draws else dummy for slot, draws in zip(slots, drawing, strict=True)]
        left = len(self._drawing) - len(slots)
        host = torch.tensor(drawing_slots + left * [dummy], dtype=torch.int32, pin_memory=self._drawing.is_cuda)
        self._drawing.copy_(host, non_blocking=True)
        torch.index_select(x, 0, self._given.ids, out=self._x)
        torch.index_select(y, 0, self._given.ids, out=self._y)

    def _run(self) -> Tensor:
        rows: DeviceRows = copy.copy(self._given)
        rows.slots = self._sampler.moving(self._given.slots)
        x, delta = self._model.finish(self._x, self._y, self._state, rows)
        last = (rows.row_start[1:].long() - 1).clamp_(min=0)  # behind the rows there are, row_start is 0
        self._model.logits(x[last], delta[last], self.logits)
        return self._sampler.draw(self.logits, self._sampler.moving(self._drawing))


def fed_tokens(ids: Tensor, rows: DeviceRows, sampler: CudaSampler) -> Tensor:
    """ids [T] int32 with LAST_DRAWN replaced."""
    drawn = sampler.last_token[rows.slots[rows.row_of.long()].long()]
    return torch.where(ids == LAST_DRAWN, drawn, ids)


class Graphs:
    """One graph for each bucket of decode rows up to `slots`, and for each of tokens up to MOST_RECORDED_TOKENS.

    Of steps with prompts, what is behind the last time mix is another one, for each bucket of positions.
    """

    @torch.inference_mode()
    def __init__(self, model: CudaModel, state: CudaState, sampler: CudaSampler, slots: int) -> None:
        pool = torch.cuda.graph_pool_handle()
        self._tokens, self._rows = token_buckets(), row_buckets(slots)
        self._positions = row_buckets(2 * slots)  # two of every row, if all of them are prompts
        logits = logits_room(self._positions[-1], model.head)
        ends = torch.zeros((2, self._positions[-1], model.sizes.width), dtype=torch.float16, device=logits.device)
        parts = model, state, sampler
        # The largest first, so that the others reuse its memory.
        self._prompts = {tokens: PromptGraph(*parts, tokens, pool) for tokens in reversed(self._tokens)}
        self._decodes = {rows: DecodeGraph(*parts, logits[:rows], pool) for rows in reversed(self._rows)}
        self._ends = {
            count: EndsGraph(*parts, ends[:, :count], logits[:count], pool) for count in reversed(self._positions)
        }
        torch.cuda.synchronize()

    def decode(self, rows: int) -> DecodeGraph:
        return self._decodes[_bucket(self._rows, rows)]

    def prompt(self, tokens: int) -> PromptGraph:
        """For at most MOST_RECORDED_TOKENS."""
        return self._prompts[_bucket(self._tokens, tokens)]

    def ends(self, lengths: Sequence[int]) -> EndsGraph:
        """For rows of these lengths."""
        return self._ends[_bucket(self._positions, sum(min(length, 2) for length in lengths))]


def row_buckets(most: int) -> list[int]:
    """Fine steps for few rows, then multiples of what fills product tiles."""
    fine = [1, 2, 3, 4, 6, *range(8, 32, 4), *range(32, 64, 8), *range(64, 512, 16)]
    sizes = [*fine, *range(512, most, 64)]
    return sorted({size for size in sizes if size < most} | {most})


def token_buckets() -> list[int]:
    """Few tokens are left over of a step, as they cost as much as others: at most a sixteenth, from 256 on."""
    fine = [*range(16, 512, 16), *range(512, 1024, 32)]
    return [*fine, *range(1024, 2048, 64), *range(2048, MOST_RECORDED_TOKENS + 1, 128)]


def _bucket(buckets: Sequence[int], count: int) -> int:
    return buckets[bisect.bisect_left(buckets, count)]


def _recorded(run: Callable[[], Results], pool: Any) -> tuple[Callable[[], None], Results]:
    run()  # cuBLAS and the allocator set themselves up outside the recording
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        results = run()
    graph.replay()  # the first run loads the graph, which holds the host up for as long as a large step takes
    return graph.replay, results
