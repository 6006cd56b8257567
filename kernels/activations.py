"""Elementwise passes behind products that a library computed."""

import ctypes

from torch import Tensor

from kernels.launch import kernel


def relu_squared_reference(x: Tensor) -> None:
    x.relu_().square_()


def relu_squared(x: Tensor) -> None:
    """x = relu(x)^2 in place, fp16, a multiple of 8 elements."""
    kernel("rwkv_relu_squared")(x, ctypes.c_int64(x.numel()))


def lora_activation_reference(h: Tensor, tanh_end: int, sigmoid_begin: int) -> None:
    """h [T, ranks] in place: tanh on columns [0, tanh_end), sigmoid on [sigmoid_begin, ranks)."""
    h[:, :tanh_end].tanh_()
    h[:, sigmoid_begin:].sigmoid_()


def lora_activation(h: Tensor, tanh_end: int, sigmoid_begin: int) -> None:
    kernel("rwkv_lora_activation")(h, *h.shape, tanh_end, sigmoid_begin)


def embed_reference(table: Tensor, tokens: Tensor) -> Tensor:
    return table[tokens.long()]


def embed(table: Tensor, tokens: Tensor) -> Tensor:
    """table [V, C] fp16, tokens [T] int32 -> [T, C]. The first kernel of a step."""
    out = table.new_empty((len(tokens), table.shape[1]))
    kernel("rwkv_embed")(table, tokens, out, *out.shape)
    return out
