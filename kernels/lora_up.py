"""The second half of the low-rank projections w, a, v, g."""

import torch
from torch import Tensor

from kernels.launch import kernel


def lora_up_reference(h: Tensor, weights: list[Tensor]) -> Tensor:
    """out [4, T, C]: out_n = h_n w_n^T, where h [T, sum of ranks] holds the four activations side by side.

    weights: four [C, rank]; a rank may be 0, whose output is 0.
    """
    parts = h.split([weight.shape[1] for weight in weights], dim=1)
    return torch.stack([part @ weight.T for part, weight in zip(parts, weights, strict=True)])


def lora_up(h: Tensor, weights: list[Tensor]) -> Tensor:
    """`lora_up_reference` for fp16; ranks are multiples of 32."""
    tokens, width = len(h), len(weights[0])
    out = torch.empty((len(weights), tokens, width), dtype=h.dtype, device=h.device)
    kernel("rwkv_lora_up")(h, weights, [weight.shape[1] for weight in weights], out, tokens, width)
    return out
