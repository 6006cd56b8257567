"""The channel mix's down projection for very few rows, reading only the neurons that are active."""

from torch import Tensor

from kernels.launch import kernel

MAX_ROWS = 8


def sparse_down_reference(h: Tensor, weights: Tensor, y: Tensor) -> None:
    """y [M, C] fp32 += h [M, 4C] weights [4C, C]"""
    y += h.to(y.dtype) @ weights.to(y.dtype)


def sparse_down(h: Tensor, weights: Tensor, y: Tensor) -> None:
    """`sparse_down_reference` for fp16 h and weights, M <= 8. The order of the sums varies from run to run."""
    rows, neurons = h.shape
    kernel("rwkv_sparse_down")(h, weights, y, rows, neurons, weights.shape[1])
