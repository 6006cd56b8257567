"""The RWKV-7 ("x070") forward pass in plain PyTorch, over packed rows of any lengths.

The formulas are those of the paper (arXiv:2503.14456, section 4 and appendix) and of the official inference code.
Projections and activations have the dtype of the weights; the WKV state and its arithmetic that of the state pool.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.engine.weights import Checkpoint, Dimensions, Progress
from kernels.packed import PackedRows
from kernels.token_shift import token_shift
from kernels.wkv7 import HEAD_SIZE, wkv7

LAYER_NORM_EPS = 1e-5
GROUP_NORM_EPS = 64e-5  # 1e-5 times the head size; trained outputs are far smaller than this, so it matters
KEY_NORM_EPS = 1e-12
LOG_DECAY_SCALE = -math.exp(-0.5)  # decay = exp(-e^-0.5 * sigmoid(w)), in (0.545, 1)


@dataclass(slots=True)
class StatePool:
    """The recurrent state of S slots: all a row has to remember, of fixed size.

    shift: [L, 2, S, C]       the last normalised input of time mix and channel mix, in the weights' dtype
    wkv:   [L, S, H, 64, 64]  (value, key), float32 or float64
    """

    shift: Tensor
    wkv: Tensor

    @classmethod
    def zeros(cls, sizes: Dimensions, slots: int, device: torch.device, dtype: torch.dtype) -> "StatePool":
        wkv_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        wkv_shape = (sizes.layers, slots, sizes.heads, HEAD_SIZE, HEAD_SIZE)
        return cls(
            shift=torch.zeros((sizes.layers, 2, slots, sizes.width), dtype=dtype, device=device),
            wkv=torch.zeros(wkv_shape, dtype=wkv_dtype, device=device),
        )


class TimeMix:
    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.mix = torch.stack([weights[f"att.x_{name}"] for name in "rwkvag"]).unsqueeze(1)  # [6, 1, C]
        self.receptance, self.key, self.value, self.output = (
            weights[f"att.{name}.weight"] for name in ("receptance", "key", "value", "output")
        )
        self.w0, self.w1, self.w2 = (weights[f"att.w{part}"] for part in "012")
        self.a0, self.a1, self.a2 = (weights[f"att.a{part}"] for part in "012")
        self.g1, self.g2 = weights["att.g1"], weights["att.g2"]
        self.value_residual = tuple(weights[f"att.v{part}"] for part in "012") if "att.v0" in weights else None
        self.k_k, self.k_a, self.r_k = weights["att.k_k"], weights["att.k_a"], weights["att.r_k"]
        self.ln_x_weight, self.ln_x_bias = weights["att.ln_x.weight"], weights["att.ln_x.bias"]

    def __call__(
        self, u: Tensor, v_first: Tensor | None, shift: Tensor, wkv: Tensor, rows: PackedRows
    ) -> tuple[Tensor, Tensor]:
        """u [T, C] normalised input; v_first [T, C] is layer 0's value. Returns the output [T, C] and `v_first`."""
        xr, xw, xk, xv, xa, xg = torch.addcmul(u, token_shift(u, shift, rows) - u, self.mix)
        r = F.linear(xr, self.receptance)
        k = F.linear(xk, self.key)
        v = F.linear(xv, self.value)
        w = self.w0 + torch.tanh(xw @ self.w1) @ self.w2
        # Near 1 half precision is too coarse for a factor that is applied once for each token.
        decay = torch.exp(LOG_DECAY_SCALE * torch.sigmoid(w.to(wkv.dtype)))
        a = torch.sigmoid(self.a0 + (xa @ self.a1) @ self.a2)
        gate = torch.sigmoid(xg @ self.g1) @ self.g2

        kk = F.normalize(_heads(k * self.k_k).to(wkv.dtype), dim=-1, eps=KEY_NORM_EPS)
        k = k * (1 + (a - 1) * self.k_a)
        if self.value_residual is None or v_first is None:
            v_first = v
        else:
            v0, v1, v2 = self.value_residual
            v = torch.lerp(v, v_first, torch.sigmoid(v0 + (xv @ v1) @ v2))

        r, k, v = _heads(r), _heads(k), _heads(v)
        y = wkv7(r, _heads(decay), k, v, kk, _heads(a), wkv, rows)
        y = F.group_norm(y.flatten(1), y.shape[1], eps=GROUP_NORM_EPS).to(u.dtype)
        y = torch.addcmul(self.ln_x_bias, y, self.ln_x_weight)
        bonus = (r * k * self.r_k).sum(dim=-1, keepdim=True) * v
        return F.linear((y + bonus.flatten(1)) * gate, self.output), v_first


class ChannelMix:
    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.mix, self.key, self.value = (weights[f"ffn.{name}"] for name in ("x_k", "key.weight", "value.weight"))

    def __call__(self, u: Tensor, shift: Tensor, rows: PackedRows) -> Tensor:
        mixed = torch.addcmul(u, token_shift(u, shift, rows) - u, self.mix)
        return F.linear(F.linear(mixed, self.key).relu_().square_(), self.value)


class Model:
    """The weights on one device. `dtype` is that of the projections; `progress` hears the share that is loaded."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
    ) -> None:
        self.sizes = checkpoint.dimensions
        self.blocks: list[tuple[LayerNorm, TimeMix, LayerNorm, ChannelMix]] = []
        for group, tensors in checkpoint.groups(progress):
            weights = {name: tensor.to(device, dtype, copy=True) for name, tensor in tensors.items()}
            if group == "emb":
                self.embedding = LayerNorm(weights, "ln0")(weights["emb.weight"])  # always used normalised
            elif group == "head":
                self.ln_out, self.head = LayerNorm(weights, "ln_out"), weights["head.weight"]
            else:
                norms = LayerNorm(weights, "ln1"), LayerNorm(weights, "ln2")
                self.blocks.append((norms[0], TimeMix(weights), norms[1], ChannelMix(weights)))

    def forward(self, tokens: Tensor, state: StatePool, rows: PackedRows) -> Tensor:
        """tokens [T] int64, packed. Advances `state` for the rows' slots; returns the final hidden states [T, C]."""
        x = F.embedding(tokens, self.embedding)
        v_first = None
        for (ln1, time_mix, ln2, channel_mix), shift, wkv in zip(self.blocks, state.shift, state.wkv, strict=True):
            y, v_first = time_mix(ln1(x), v_first, shift[0], wkv, rows)
            x = x + y
            x = x + channel_mix(ln2(x), shift[1], rows)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, C] -> logits [N, V] in float32 (float64 if the model is)."""
        logits = F.linear(self.ln_out(hidden), self.head)
        return logits if logits.dtype == torch.float64 else logits.float()


class LayerNorm:
    def __init__(self, weights: dict[str, Tensor], name: str) -> None:
        self.weight, self.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, LAYER_NORM_EPS)


def _heads(x: Tensor) -> Tensor:
    """[T, C] -> [T, H, 64]"""
    return x.view(x.shape[0], -1, HEAD_SIZE)
