"""Products of few rows with large weights, several in one launch, with an activation."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.launch import kernel

MAX_ROWS = 64
ACTIVATIONS = {"none": 0, "relu_squared": 1, "tanh": 2, "sigmoid": 3}


class Product(NamedTuple):
    """y [M, N] = activation(x [M, K] w [N, K]^T); y may be a slice of columns of a wider tensor."""

    x: Tensor
    w: Tensor
    y: Tensor
    activation: str = "none"


def products_reference(products: list[Product]) -> None:
    for x, w, y, activation in products:
        product = (x.double() @ w.double().T).to(torch.float32)
        if activation == "relu_squared":
            product = product.relu().square()
        elif activation != "none":
            product = getattr(torch, activation)(product)
        y.copy_(product)


def skinny_products(products: list[Product]) -> None:
    """`products_reference` for fp16 x and w, M <= 64, K a multiple of 128, N of 32; all of one M, K and type of y."""
    m, k = products[0].x.shape
    kernel("rwkv_skinny_gemm")(
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
