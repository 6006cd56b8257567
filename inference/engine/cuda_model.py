"""The RWKV-7 forward pass on the project's CUDA kernels: fp16 weights and activations, fp32 sums.

The same formulas as `inference.engine.model`, over the same packed rows.
"""

import logging
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.cuda_block import Block
from inference.engine.cuda_products import (
    DOWN,
    HEAD,
    INPUTS,
    LINEAR,
    LORA_UP,
    logits_room,
    measure_library,
    measure_products,
    open_choices,
)
from inference.engine.library_choice import Library
from inference.engine.measuring import Replay, recorded
from inference.engine.model import LAYER_NORM_EPS
from inference.engine.weights import Checkpoint, Dimensions, Progress
from kernels.activations import embed
from kernels.mix import kept_before, mix
from kernels.packed import DeviceRows
from kernels.sparse_down import sparse_down
from kernels.time_mix import HEAD_SIZE, time_mix

log = logging.getLogger(__name__)

TUNING_ROWS = 1024  # steps of up to this many rows are tuned as a whole
TUNING_SLOTS = 64


@dataclass(slots=True)
class CudaState:
    """shift: [L, 2, S, C] fp16; wkv: [L, S, H, 64, 64] fp16 or fp32, (value, key)."""

    shift: Tensor
    wkv: Tensor

    @classmethod
    def zeros(cls, sizes: Dimensions, slots: int, device: torch.device, wkv_dtype: torch.dtype) -> "CudaState":
        wkv = (sizes.layers, slots, sizes.heads, HEAD_SIZE, HEAD_SIZE)
        return cls(
            torch.zeros((sizes.layers, 2, slots, sizes.width), dtype=torch.float16, device=device),
            torch.zeros(wkv, dtype=wkv_dtype, device=device),
        )


class CudaModel:
    """The weights on one GPU, and the forward pass over them.

    `sparse`: keep a second copy of the channel mix's down projection, by neuron, for steps of very few rows.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, progress: Progress | None = None, *, sparse: bool = True
    ) -> None:
        self.sizes = checkpoint.dimensions
        self.blocks: list[Block] = []
        for group, tensors in checkpoint.groups(progress):
            # Contiguous: a file may hold a matrix transposed, and our kernels know no strides.
            weights = {name: tensor.to(device).to(torch.float16).contiguous() for name, tensor in tensors.items()}
            if group == "emb":
                # Normalised once, from what the file holds; later layers never see the raw embedding.
                table = weights["emb.weight"].float()
                norm = weights["ln0.weight"].float(), weights["ln0.bias"].float()
                self.embedding = F.layer_norm(table, norm[0].shape, *norm, LAYER_NORM_EPS).half()
            elif group == "head":
                self.ln_out = weights["ln_out.weight"], weights["ln_out.bias"]
                self.head = weights["head.weight"]
            else:
                self.blocks.append(Block(weights, sparse=sparse))
        self._choices = open_choices(self.sizes.layers, self.sizes.width)
        self._library = Library(self._choices.algorithms)
        if not self._choices.complete:
            self._tune(sparse)

    def forward(self, tokens: Tensor, state: CudaState, rows: DeviceRows) -> tuple[Tensor, Tensor]:
        """tokens [T] int32, packed. Advances `state`; returns (x, delta), whose sum [T, C] is the hidden state."""
        return self.finish(*self.advance(tokens, state, rows), state, rows)

    def advance(self, tokens: Tensor, state: CudaState, rows: DeviceRows) -> tuple[Tensor, Tensor]:
        """`forward` without what only the positions whose hidden state is wanted need: returns what `finish` takes."""
        count = len(tokens)
        inputs = INPUTS[self._choices.best("inputs", count)]
        lora_up = LORA_UP[self._choices.best("lora_up", count)]
        delta: Tensor | None = None
        v_first: Tensor | None = None
        before = kept_before(state.shift, rows)
        befores = [(None, None)] * len(self.blocks) if before is None else before
        x = embed(self.embedding, tokens)
        y = x
        for layer, (block, shift, shift_before, wkv) in enumerate(
            zip(self.blocks, state.shift, befores, state.wkv, strict=True)
        ):
            x, mixed = mix(x, delta, *block.ln1, block.mixes, shift[0], shift_before[0], rows)
            (v, r, k), lora = inputs(block, mixed, lora_up, self._library)
            y = time_mix(r, k, v, lora, v_first, block.vectors, wkv, rows)
            v_first = v if v_first is None else v_first
            if layer < len(self.blocks) - 1:
                x, delta = self._mix_channels(block, x, y, shift[1], shift_before[1], rows)
        return x, y

    def finish(self, x: Tensor, y: Tensor, state: CudaState, rows: DeviceRows) -> tuple[Tensor, Tensor]:
        """(x, delta) of the positions that are left of `rows`: all of them, or the ends (`DeviceRows.ends`)."""
        shift = state.shift[-1, 1]
        x, delta = self._mix_channels(self.blocks[-1], x, y, shift, kept_before(shift, rows), rows)
        return x, delta.sum(0) if delta.dim() == 3 else delta

    def _mix_channels(
        self, block: Block, x: Tensor, y: Tensor, kept: Tensor, before: Tensor | None, rows: DeviceRows
    ) -> tuple[Tensor, Tensor]:
        """x [T, C], and y [T, C], what the time mix hands to its output projection -> (x, delta)."""
        count = len(y)
        output = LINEAR[self._choices.best("output", count)]
        up = LINEAR[self._choices.best("up", count)]
        down = self._choices.best("down", count)
        delta = output(y, block.output, "none", self._library)
        sums = torch.empty(x.shape, dtype=torch.float32, device=x.device) if down == "sparse" else None
        x, mixed = mix(x, delta, *block.ln2, block.channel_mix, kept, before, rows, zeroed=sums)
        h = up(mixed[0], block.up, "relu_squared", self._library)
        if sums is None:
            return x, DOWN[down](h, block.down, "none", self._library)
        sparse_down(h, block.down_by_neuron, sums)
        return x, sums

    def logits(self, x: Tensor, delta: Tensor, room: Tensor | None = None) -> Tensor:
        """(x, delta) [N, C] of the wanted positions -> logits [N, V] fp32, in `room` if that is given."""
        hidden = F.layer_norm(x + delta.to(x.dtype), self.ln_out[0].shape, *self.ln_out, LAYER_NORM_EPS)
        logits = logits_room(len(hidden), self.head) if room is None else room
        HEAD[self._choices.best("head", len(hidden))](hidden, self.head, logits)
        return logits

    @torch.inference_mode()
    def _tune(self, sparse: bool) -> None:
        """Find the fastest ways to compute the products on this GPU; takes some seconds, once."""
        log.info("measuring the ways to compute products on this GPU")
        measure_library(self._library, self.blocks)
        measure_products(self._choices, self._library, self.blocks, self.head, sparse=sparse)
        state = CudaState.zeros(self.sizes, TUNING_SLOTS, self.head.device, torch.float16)
        inputs: list[object] = []  # of the recorded steps, for as long as these are compared

        def record(rows: int) -> Replay:
            # More rows than slots share them: a race, but states have no part in this choice.
            slots = torch.arange(rows, dtype=torch.int32, device=self.head.device) % TUNING_SLOTS
            packed = DeviceRows.single_tokens(slots)
            tokens = torch.randint(self.sizes.vocab, (rows,), dtype=torch.int32, device=self.head.device)
            inputs.append((packed, tokens))
            return recorded(lambda: self.logits(*self.forward(tokens, state, packed)))

        self._choices.refine(record, most_rows=TUNING_ROWS)
        self._choices.save()
