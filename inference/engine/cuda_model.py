"""The RWKV-7 forward pass on the project's CUDA kernels: fp16 weights and activations, fp32 sums.

The same formulas as `inference.engine.model`, over the same packed rows. Products of few rows run on
our own kernels, which read weights at the memory's speed; products of many rows run on cuBLAS.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.model import LAYER_NORM_EPS
from inference.engine.weights import Checkpoint, Dimensions, Progress
from kernels import skinny_gemm, sparse_down
from kernels.activations import embed, lora_activation, relu_squared
from kernels.lora_up import lora_up
from kernels.mix import mix
from kernels.packed import DeviceRows
from kernels.skinny_gemm import Product, skinny_products
from kernels.time_mix import HEAD_SIZE, VECTORS, time_mix

RANK_MULTIPLE = 32  # ranks are padded with zeros to what the kernels' fragments want
PROJECTIONS = ("receptance", "key", "value")
MIX_ORDER = "rkvwag"  # order of the mixed inputs; r, k and v come first and together
LORA_ORDER = "wavg"
LORA_UP_ROWS = 128  # more rows than this run through cuBLAS
LORA_ACTIVATION = {"w": "tanh", "a": "none", "v": "none", "g": "sigmoid"}


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


class Block:
    """One layer's weights, arranged for the kernels."""

    def __init__(self, weights: dict[str, Tensor], *, sparse: bool) -> None:
        self.ln1 = weights["ln1.weight"], weights["ln1.bias"]
        self.ln2 = weights["ln2.weight"], weights["ln2.bias"]
        self.mixes = torch.stack([weights[f"att.x_{name}"] for name in MIX_ORDER])
        self.channel_mix = weights["ffn.x_k"].unsqueeze(0)
        self.projections = torch.stack([weights[f"att.{name}.weight"] for name in PROJECTIONS])  # [3, C, C]
        self.output = weights["att.output.weight"]
        self.up = weights["ffn.key.weight"]
        self.down = weights["ffn.value.weight"]
        self.down_by_neuron = self.down.T.contiguous() if sparse else None
        self.has_value_residual = "att.v1" in weights
        width = len(self.output)
        empty = self.output.new_zeros((0, width))
        self.lora_in: dict[str, Tensor] = {}
        self.lora_out: list[Tensor] = []
        for name in LORA_ORDER:
            into = _padded(weights[f"att.{name}1"].T) if f"att.{name}1" in weights else empty
            outof = (
                _padded(weights[f"att.{name}2"]).T.contiguous() if f"att.{name}2" in weights else empty.T.contiguous()
            )
            self.lora_in[name] = into
            self.lora_out.append(outof)
        self.ranks = [len(self.lora_in[name]) for name in LORA_ORDER]
        zero = self.output.new_zeros(width)
        self.vectors = [weights.get(f"att.{name}", zero).reshape(-1) for name in VECTORS]


class CudaModel:
    """The weights on one GPU. `sparse`: keep a second copy of the channel mix's down projection, by neuron."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, progress: Progress | None = None, *, sparse: bool = True
    ) -> None:
        self.sizes = checkpoint.dimensions
        self.blocks: list[Block] = []
        for group, tensors in checkpoint.groups(progress):
            weights = {name: tensor.to(device).to(torch.float16) for name, tensor in tensors.items()}
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

    def forward(self, tokens: Tensor, state: CudaState, rows: DeviceRows) -> tuple[Tensor, Tensor]:
        """tokens [T] int32, packed. Advances `state`; returns (x, delta), whose sum [T, C] is the hidden state."""
        x = embed(self.embedding, tokens)
        delta: Tensor | None = None
        v_first: Tensor | None = None
        for block, shift, wkv in zip(self.blocks, state.shift, state.wkv, strict=True):
            x, mixed = mix(x, delta, *block.ln1, block.mixes, shift[0], rows)
            r, k, v, h = self._project(block, mixed)
            y = time_mix(r, k, v, self._lora_up(block, h), v_first, block.vectors, wkv, rows)
            v_first = v if v_first is None else v_first
            delta = self._linear(y, block.output)
            x, delta = self._channel_mix(block, x, delta, shift[1], rows)
        assert delta is not None, "a model has at least one layer"
        return x, delta

    def logits(self, x: Tensor, delta: Tensor) -> Tensor:
        """(x, delta) [N, C] of the wanted positions -> logits [N, V] fp32."""
        hidden = F.layer_norm(x + delta.to(x.dtype), self.ln_out[0].shape, *self.ln_out, LAYER_NORM_EPS)
        if len(hidden) > skinny_gemm.MAX_ROWS:
            return torch.mm(hidden, self.head.T, out_dtype=torch.float32)
        logits = torch.empty((len(hidden), len(self.head)), dtype=torch.float32, device=x.device)
        skinny_products([Product(hidden, self.head, logits)])
        return logits

    def _project(self, block: Block, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """r, k, v [T, C], and the low-rank activations side by side [T, sum of ranks]."""
        _, tokens, width = mixed.shape
        inputs = dict(zip(MIX_ORDER, mixed, strict=True))
        rkv = mixed.new_empty((3, tokens, width))
        h = mixed.new_empty((tokens, sum(block.ranks)))
        lora = [
            Product(inputs[name], block.lora_in[name], part, LORA_ACTIVATION[name])
            for name, part in zip(LORA_ORDER, h.split(block.ranks, dim=1), strict=True)
            if len(block.lora_in[name])
        ]
        if tokens <= skinny_gemm.MAX_ROWS:
            skinny_products([*map(Product, mixed[:3], block.projections, rkv), *lora])
            return *rkv, h
        torch.bmm(mixed[:3], block.projections.mT, out=rkv)
        for product in lora:
            torch.mm(product.x, product.w.T, out=product.y)
        lora_activation(h, block.ranks[0], sum(block.ranks[:3]))
        return *rkv, h

    @staticmethod
    def _lora_up(block: Block, h: Tensor) -> Tensor:
        """[T, sum of ranks] -> [4, T, C]"""
        if len(h) <= LORA_UP_ROWS:
            return lora_up(h, block.lora_out)
        out = h.new_empty((len(LORA_ORDER), len(h), len(block.output)))
        for part, weight, target in zip(h.split(block.ranks, dim=1), block.lora_out, out, strict=True):
            if weight.shape[1]:
                torch.mm(part, weight.T, out=target)
        return out

    def _channel_mix(
        self, block: Block, x: Tensor, delta: Tensor, shift: Tensor, rows: DeviceRows
    ) -> tuple[Tensor, Tensor]:
        tokens = len(x)
        sparse = block.down_by_neuron is not None and tokens <= sparse_down.MAX_ROWS
        sums = torch.empty((tokens, x.shape[1]), dtype=torch.float32, device=x.device) if sparse else None
        x, mixed = mix(x, delta, *block.ln2, block.channel_mix, shift, rows, zeroed=sums)
        h = self._linear(mixed[0], block.up, "relu_squared")
        if sums is None:
            return x, self._linear(h, block.down)
        sparse_down.sparse_down(h, block.down_by_neuron, sums)  # type: ignore[arg-type]
        return x, sums

    @staticmethod
    def _linear(x: Tensor, weight: Tensor, activation: str = "none") -> Tensor:
        if len(x) > skinny_gemm.MAX_ROWS:
            y = torch.mm(x, weight.T)
            if activation == "relu_squared":
                relu_squared(y)
            return y
        y = x.new_empty((len(x), len(weight)))
        skinny_products([Product(x, weight, y, activation)])
        return y


def _padded(weight: Tensor) -> Tensor:
    """Rows [rank, ...] extended with zeros to a whole number of fragments."""
    missing = -len(weight) % RANK_MULTIPLE
    return F.pad(weight, (0, 0, 0, missing)).contiguous()
