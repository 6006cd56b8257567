"""The low-rank projections' second half against float64."""

import pytest
import torch

from kernels.lora_up import lora_up, lora_up_reference
from tests.gpu.accuracy import normal, poisoned_memory, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16, 33, 128, 300])
@pytest.mark.parametrize(
    ("width", "ranks"),
    [
        (768, [64, 64, 32, 128]),
        (2560, [96, 96, 64, 320]),
        (4096, [128, 128, 96, 480]),
        (4096, [192, 192, 192, 384]),
        (4096, [160, 160, 160, 320]),
        (4096, [128, 128, 0, 480]),
    ],
)
def test_matches_float64(tokens: int, width: int, ranks: list[int]) -> None:
    h = normal(tokens, sum(ranks))
    weights = [normal(width, rank, scale=0.05) for rank in ranks]
    with poisoned_memory():
        out = lora_up(h, weights)
    exact = lora_up_reference(h.double(), [weight.double() for weight in weights])
    assert relative_error(out, exact) < 1e-3
    assert not out[2].any() or ranks[2]


def test_refuses_a_rank_that_is_no_multiple_of_32() -> None:
    with pytest.raises(RuntimeError, match="rwkv_lora_up"):
        lora_up(normal(1, 160), [normal(64, rank) for rank in (32, 32, 32, 64 - 1)])
