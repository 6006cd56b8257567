"""Steps that are recorded as CUDA graphs: launching one costs the host next to nothing, however many kernels it has.

Launching them one by one takes some 15 ms, and several times that while other threads want the interpreter.
"""

import bisect
import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from inference.engine.cuda_model import CudaModel, CudaState
from inference.engine.cuda_sampler import CudaSampler
from kernels.packed import PAD_TOKENS, DeviceRows, RecordedRows

MOST_RECORDED_TOKENS = 4096
LAST_DRAWN = -1  # in place of an id: the token that the row's slot drew last

Results = TypeVar("Results")


class DecodeGraph:
    """A decode step of a fixed number of rows, up to the draws. Fill `slots`, replay, read `tokens` and `logits`."""

    def __init__(self, model: CudaModel, state: CudaState, sampler: CudaSampler, rows: int, pool: Any) -> None:
        self.slots = torch.full((rows,), sampler.dummy, dtype=torch.int32, device=sampler.device)
        self._model, self._state, self._sampler = model, state, sampler
        self._packed = DeviceRows.single_tokens(torch.empty_like(self.slots))
        self.replay, (self.logits, self.tokens) = _recorded(self._run, pool)

    def _run(self) -> tuple[Tensor, Tensor]:
        rows = self._packed
        rows.slots = self._sampler.moving(self.slots)
        tokens = self._sampler.last_token[rows.slots.long()]
        logits = self._model.logits(*self._model.forward(tokens, self._state, rows))
        return logits, self._sampler.draw(logits, rows.slots)


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


def fed_tokens(ids: Tensor, rows: DeviceRows, sampler: CudaSampler) -> Tensor:
    """ids [T] int32 with LAST_DRAWN replaced."""
    drawn = sampler.last_token[rows.slots[rows.row_of.long()].long()]
    return torch.where(ids == LAST_DRAWN, drawn, ids)


class Graphs:
    """One graph for each bucket of decode rows up to `slots`, and for each of tokens up to MOST_RECORDED_TOKENS."""

    @torch.inference_mode()
    def __init__(self, model: CudaModel, state: CudaState, sampler: CudaSampler, slots: int) -> None:
        pool = torch.cuda.graph_pool_handle()
        self._tokens, self._rows = token_buckets(), row_buckets(slots)
        # The largest first, so that the others reuse its memory.
        self._prompts = {tokens: PromptGraph(model, state, sampler, tokens, pool) for tokens in reversed(self._tokens)}
        self._decodes = {rows: DecodeGraph(model, state, sampler, rows, pool) for rows in reversed(self._rows)}
        torch.cuda.synchronize()

    def decode(self, rows: int) -> DecodeGraph:
        return self._decodes[_bucket(self._rows, rows)]

    def prompt(self, tokens: int) -> PromptGraph:
        """For at most MOST_RECORDED_TOKENS."""
        return self._prompts[_bucket(self._tokens, tokens)]


def row_buckets(slots: int) -> list[int]:
    """Fine steps for few rows, then multiples of what fills product tiles."""
    fine = [1, 2, 3, 4, 6, *range(8, 32, 4), *range(32, 64, 8), *range(64, 512, 16)]
    sizes = [*fine, *range(512, slots, 64)]
    return sorted({size for size in sizes if size < slots} | {slots})


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
