"""Elementwise kernels against float64."""

import pytest
import torch

from kernels.activations import (
    embed,
    embed_reference,
    lora_activation,
    lora_activation_reference,
    relu_squared,
    relu_squared_reference,
)
from tests.gpu.accuracy import DEVICE, normal, poisoned_memory, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("shape", [(1, 8), (3, 3072), (65, 10240), (600, 16384)])
def test_relu_squared(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    exact = x.double()
    relu_squared_reference(exact)
    relu_squared(x)
    assert relative_error(x, exact) < 1e-3


@pytest.mark.parametrize("tokens", [1, 65, 1000])
@pytest.mark.parametrize(("ranks", "tanh_end", "sigmoid_begin"), [(832, 128, 352), (288, 64, 160), (96, 0, 96)])
def test_lora_activation(tokens: int, ranks: int, tanh_end: int, sigmoid_begin: int) -> None:
    h = normal(tokens, ranks, scale=3)
    exact = h.double()
    lora_activation_reference(exact, tanh_end, sigmoid_begin)
    lora_activation(h, tanh_end, sigmoid_begin)
    assert relative_error(h, exact) < 1e-3


@pytest.mark.parametrize("width", [768, 4096])
def test_embed(width: int) -> None:
    table = normal(1000, width)
    tokens = torch.randint(0, 1000, (37,), device=DEVICE, dtype=torch.int32)
    with poisoned_memory():
        x = embed(table, tokens)
    assert torch.equal(x, embed_reference(table, tokens))
