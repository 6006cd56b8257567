"""The WKV-7 recurrence with all that lies between the projections and the output projection."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.launch import kernel
from kernels.packed import DeviceRows

HEAD_SIZE = 64
GROUP_NORM_EPS = 64e-5
VECTORS = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln_x.weight", "ln_x.bias")


def time_mix_reference(
    r: Tensor, k: Tensor, v: Tensor, lora: Tensor, v_first: Tensor | None, vectors: list[Tensor], state: Tensor,
    rows: DeviceRows,
) -> Tensor:  # fmt: skip
    """Return the input of the output projection, [T, C]; advance `state` [S, H, 64, 64] for the rows' slots.

    r, k, v: [T, C] raw projections. lora: [4, T, C], w, a, v and g before bias and sigmoid. v_first: layer 0's v,
    None in layer 0. vectors: eight [C], in the order of VECTORS. Token by token, in the dtype of `r`: give float64.
    """
    w0, a0, v0, k_k, k_a, r_k, ln_weight, ln_bias = vectors
    decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(w0 + lora[0]))
    a = torch.sigmoid(a0 + lora[1])
    kk = F.normalize(_heads(k * k_k), dim=-1, eps=1e-12)
    k = k * (1 + (a - 1) * k_a)
    if v_first is not None:
        v = v + (v_first - v) * torch.sigmoid(v0 + lora[2])
    r, k, v, decay, a = (_heads(x) for x in (r, k, v, decay, a))
    y = torch.empty_like(r)
    starts = rows.row_start.tolist()
    for row, slot in enumerate(rows.slots.tolist()):
        s = state[slot].to(r.dtype)
        for t in range(starts[row], starts[row + 1]):
            removed = (s * kk[t, :, None, :]).sum(-1, keepdim=True)
            s = s * decay[t, :, None, :] - removed * (kk * a)[t, :, None, :] + v[t, :, :, None] * k[t, :, None, :]
            y[t] = (s * r[t, :, None, :]).sum(-1)
        state[slot] = s.to(state.dtype)
    y = F.group_norm(y.flatten(1), y.shape[1], eps=GROUP_NORM_EPS) * ln_weight + ln_bias
    bonus = (r * k * _heads(r_k.unsqueeze(0))).sum(-1, keepdim=True) * v
    return (y + bonus.flatten(1)) * lora[3]


def time_mix(
    r: Tensor, k: Tensor, v: Tensor, lora: Tensor, v_first: Tensor | None, vectors: list[Tensor], state: Tensor,
    rows: DeviceRows,
) -> Tensor:  # fmt: skip
    """`time_mix_reference` for fp16 inputs and `state` in fp16 or fp32.

    Rows of one token at the front are computed in fp32; longer rows in chunks of 16 tokens, as products of fp16 with
    fp32 sums, whose error is that of rounding to fp16. `state` is read before the kernel launched last has ended, so
    that one must not write it.
    """
    out = torch.empty_like(r)
    tokens, width = r.shape
    kernel("rwkv_wkv7")(
        r, k, v, lora, v_first, vectors, state, int(state.dtype == torch.float32), rows.slots, rows.row_start, out,
        len(rows.slots), rows.singles, rows.counts, tokens, width,
    )  # fmt: skip
    return out


def _heads(x: Tensor) -> Tensor:
    """[T, C] -> [T, H, 64]"""
    return x.unflatten(-1, (-1, HEAD_SIZE))
