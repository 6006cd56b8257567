"""Residual add, LayerNorm, token shift and mixes in one pass."""

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
    slot has kept. x, delta: [T, C]; weight, bias: [C]; mixes: [n, C].
    """
    x = x if delta is None else x + delta.to(x.dtype)
    u = F.layer_norm(x, weight.shape, weight, bias, EPS)
    previous = torch.empty_like(u)
    previous[1:] = u[:-1]
    starts, ends, slots = rows.row_start[:-1].long(), rows.row_start[1:].long() - 1, rows.slots.long()
    previous[starts] = kept[slots]
    kept[slots] = u[ends]
    return x, torch.addcmul(u, previous - u, mixes.unsqueeze(1))


def mix(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mixes: Tensor,
    kept: Tensor,
    rows: DeviceRows,
    zeroed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`mix_reference` for fp16, n = 1 or 6; `delta` may be fp32. Clears `zeroed`, fp32 [T, C], on the way."""
    tokens, width = x.shape
    summed = x if delta is None else torch.empty_like(x)
    out = torch.empty((len(mixes), tokens, width), dtype=x.dtype, device=x.device)
    # A row of several tokens is worked on by several blocks, so what its slot kept must not change meanwhile.
    before, index = (kept, rows.slots) if rows.lone else (kept[rows.slots.long()], rows.numbers)
    is_float = delta is not None and delta.dtype == torch.float32
    kernel("rwkv_mix")(
        len(mixes), int(is_float), x, delta, summed, weight, bias, mixes, before, index, kept, rows.slots,
        rows.row_of, out, zeroed, tokens, width,
    )  # fmt: skip
    return summed, out
