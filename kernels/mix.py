"""Residual add, LayerNorm, token shift and mixes in one pass."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.launch import kernel
from kernels.packed import DeviceRows

EPS = 1e-5


def mix_reference(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, mixes: Tensor, kept: Tensor, rows: DeviceRows
) -> tuple[Tensor, Tensor]:
    """Return (x + delta [T, C], mixed [n, T, C]) and put each row's last u into `kept` [S, C].

    u = LayerNorm(x + delta); mixed_n[t] = u[t] + (u[t-1] - u[t]) * mixes_n, where u[-1] is what the row's
    slot has kept. x: [T, C]; delta: [T, C], or [2, T, C] if it is a sum of two; weight, bias: [C]; mixes: [n, C].
    """
    if delta is not None:
        x = x + (delta.sum(0) if delta.dim() == 3 else delta).to(x.dtype)
    u = F.layer_norm(x, weight.shape, weight, bias, EPS)
    previous = torch.empty_like(u)
    previous[1:] = u[:-1]
    starts, ends, slots = rows.row_start[:-1].long(), rows.row_start[1:].long() - 1, rows.slots.long()
    previous[starts] = kept[slots]
    kept[slots] = u[ends]
    return x, torch.addcmul(u, previous - u, mixes.unsqueeze(1))


def kept_before(kept: Tensor, rows: DeviceRows) -> Tensor | None:
    """kept [..., S, C] -> [..., B, C], what `mix` wants of rows of several tokens, while it writes `kept`.

    Rows of one token are left out; None if there are no others.
    """
    if rows.lone:
        return None
    *planes, slots, width = kept.shape
    before = torch.empty((*planes, len(rows.slots), width), dtype=kept.dtype, device=kept.device)
    kernel("rwkv_kept_before")(
        kept, before, rows.slots, math.prod(planes), slots, len(rows.slots), rows.singles, rows.counts, width,
    )  # fmt: skip
    return before


def mix(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mixes: Tensor,
    kept: Tensor,
    before: Tensor | None,
    rows: DeviceRows,
    zeroed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`mix_reference` for fp16, n = 1 or 6; a `delta` [T, C] may be fp32. Clears `zeroed`, fp32 [T, C], on the way.

    before: `kept_before` of `kept` [B, C].
    """
    tokens, width = x.shape
    summed = x if delta is None else torch.empty_like(x)
    out = torch.empty((len(mixes), tokens, width), dtype=x.dtype, device=x.device)
    kernel("rwkv_mix")(
        len(mixes), _delta_kind(delta), x, delta, summed, weight, bias, mixes, before, kept, rows.slots, rows.singles,
        rows.counts, rows.row_of, out, zeroed, tokens, width,
    )  # fmt: skip
    return summed, out


def _delta_kind(delta: Tensor | None) -> int:
    """As kernels/csrc/mix.cu knows them."""
    if delta is None:
        return 0
    return 2 if delta.dim() == 3 else int(delta.dtype == torch.float32)
