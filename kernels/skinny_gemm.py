"""Products of few rows with large weights, several in one launch, with an activation."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.launch import kernel

ACTIVATIONS = {"none": 0, "relu_squared": 1, "tanh": 2, "sigmoid": 3}

_HOPPER = (9, 0)
_PORTABLE_ROWS = 64  # that rwkv_skinny_gemm takes at a time


class Product(NamedTuple):
    """y [M, N] = activation(x [M, K] w [N, K]^T); y may be a slice of columns of a wider tensor."""

    x: Tensor
    w: Tensor
    y: Tensor
    activation: str = "none"


def products_reference(products: list[Product]) -> None:
    for x, w, y, activation in products:
        product = (x.double() @ w.double().T).to(y.dtype if y.dtype == torch.float64 else torch.float32)
        if activation == "relu_squared":
            product = product.relu().square()
        elif activation != "none":
            product = getattr(torch, activation)(product)
        y.copy_(product)


def skinny_products(products: list[Product]) -> None:
    """`products_reference` for up to 8 products of fp16 x and w, all of one M and type of y (fp16 or fp32).

    K is a multiple of 128, or of 32 if `takes_any_depth`; N is a multiple of 32. w is contiguous, x may be a slice of
    columns. M is free. Calls that run at the same time on two streams disturb each other. Raises RuntimeError for
    other shapes.
    """
    if takes_any_depth(products[0].x.device):
        _launch_on_hopper(products)
        return
    depths = {product.x.shape[1] for product in products}
    for depth in depths:
        alike = [product for product in products if product.x.shape[1] == depth]
        for start in range(0, len(products[0].x), _PORTABLE_ROWS):
            rows = slice(start, start + _PORTABLE_ROWS)
            _launch_portable([Product(x[rows].contiguous(), w, y[rows], act) for x, w, y, act in alike])


def takes_any_depth(device: torch.device) -> bool:
    return _capability(device) == _HOPPER


def _launch_on_hopper(products: list[Product]) -> None:
    x = products[0].x
    kernel("rwkv_hopper_gemm")(
        *_matrices(products),
        [product.x.shape[1] for product in products],
        [product.x.stride(0) for product in products],
        *_outputs(products),
        len(x),
        int(products[0].y.dtype == torch.float32),
        _multiprocessors(x.device),
    )


def _launch_portable(products: list[Product]) -> None:
    x = products[0].x
    kernel("rwkv_skinny_gemm")(
        *_matrices(products),
        *_outputs(products),
        *x.shape,
        int(products[0].y.dtype == torch.float32),
        _multiprocessors(x.device),
    )


def _matrices(products: list[Product]) -> list[Any]:
    return [
        len(products),
        [product.x for product in products],
        [product.w for product in products],
        [product.y for product in products],
        [len(product.w) for product in products],
    ]


def _outputs(products: list[Product]) -> list[Any]:
    return [[product.y.stride(0) for product in products], [ACTIVATIONS[product.activation] for product in products]]


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
