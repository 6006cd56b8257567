"""The products that a library computes for the CUDA back end: the same sums, however they are laid out."""

import pytest
import torch

from inference.engine.cuda_block import Block
from inference.engine.cuda_products import DOWN, LINEAR, LORA_UP
from inference.engine.library_choice import Library
from inference.engine.weights import Checkpoint


@pytest.fixture(scope="module")
def block(tiny_checkpoint) -> Block:
    groups = [tensors for name, tensors in Checkpoint(tiny_checkpoint).groups(None) if name not in ("emb", "head")]
    return Block({name: tensor.double().contiguous() for name, tensor in groups[1].items()}, sparse=False)


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_two_halves_of_the_down_projection_add_up_to_it(block, tokens):
    h = torch.randn(tokens, block.down.shape[1], dtype=torch.float64)
    halves = DOWN["halves"](h, block.down, "none", Library({}))
    assert halves.shape == (2, tokens, len(block.down))
    torch.testing.assert_close(halves.sum(0), h @ block.down.T)
    torch.testing.assert_close(LINEAR["library"](h, block.down, "none", Library({})), h @ block.down.T)


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_low_rank_outputs_are_those_of_w_a_v_and_g(block, tokens):
    parts = [torch.randn(tokens, rank, dtype=torch.float64) for rank in block.ranks]
    lora = LORA_UP["library"](block, torch.cat(parts, dim=1))
    for found, part, weight in zip(lora, parts, block.lora_out, strict=True):
        torch.testing.assert_close(found, part @ weight.T)
