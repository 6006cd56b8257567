"""Products of few rows with large weights, several in one launch, with an activation."""

from typing import NamedTuple

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
    """`products_reference` for up to 8 products of fp16 x and w, all of one M, K and type of y (fp16 or fp32).

    K is a multiple of 128, N of 32; x and w are contiguous. M is free. Calls that run at
    the same time on two streams disturb each other. Raises RuntimeError for other shapes.
    """
    if torch.cuda.get_device_capability(products[0].x.device) == _HOPPER:
        _launch("rwkv_hopper_gemm", products)
        return
    for start in range(0, len(products[0].x), _PORTABLE_ROWS):
        rows = slice(start, start + _PORTABLE_ROWS)
        _launch("rwkv_skinny_gemm", [Product(x[rows], w, y[rows], activation) for x, w, y, activation in products])


def _launch(name: str, products: list[Product]) -> None:
    m, k = products[0].x.shape
    kernel(name)(
        len(products),
        [product.x for product in products],
        [product.w for product in products],
        [product.y for product in products],
        [len(product.w) for product in products],
        [product.y.stride(0) for product in products],
        [ACTIVATIONS[product.activation] for product in products],
        m,
        k,
        int(products[0].y.dtype == torch.float32),
        torch.cuda.get_device_properties(products[0].x.device).multi_processor_count,
    )
