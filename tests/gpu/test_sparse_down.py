"""The sparse down projection against float64."""

import pytest
import torch

from kernels.sparse_down import MAX_ROWS, sparse_down, sparse_down_reference
from tests.gpu.accuracy import DEVICE, normal, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
@pytest.mark.parametrize("width", [768, 1000, 2048, 4096])
@pytest.mark.parametrize("active", [0.0, 0.1, 1.0])
def test_matches_float64(rows: int, width: int, active: float) -> None:
    neurons = 4 * width
    h = normal(rows, neurons)
    h[torch.rand(rows, neurons, device=DEVICE) >= active] = 0
    weights, y = normal(neurons, width, scale=0.02), normal(rows, width, dtype=torch.float32)
    exact = y.double()
    sparse_down_reference(h.double(), weights.double(), exact)
    sparse_down(h, weights, y)
    assert relative_error(y, exact) < 1e-5


def test_idle_neurons_are_not_read() -> None:
    h, weights, y = normal(1, 1024), normal(1024, 256), torch.zeros(1, 256, device=DEVICE)
    h[:, ::2] = 0
    exact = h.double() @ weights.double()
    weights[::2] = float("nan")
    sparse_down(h, weights, y)
    assert relative_error(y, exact) < 1e-5
