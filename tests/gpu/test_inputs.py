"""Every way to compute what the WKV recurrence takes in, against float64."""

from pathlib import Path

import pytest
import torch

from inference.engine.cuda_block import LORA_ORDER, MIX_ORDER, PROJECTED, Block
from inference.engine.cuda_products import INPUTS, LORA_UP
from inference.engine.library_choice import Library
from inference.engine.synthetic import make_checkpoint
from inference.engine.weights import Checkpoint
from tests.gpu.accuracy import DEVICE, normal, poisoned_memory, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Block:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.pth"
    make_checkpoint(path, "tiny")
    groups = [tensors for name, tensors in Checkpoint(path).groups(None) if name not in ("emb", "head")]
    return Block({name: tensor.to(DEVICE).half().contiguous() for name, tensor in groups[1].items()}, sparse=False)


@pytest.mark.parametrize("way", INPUTS)
@pytest.mark.parametrize("rows", [1, 7, 64, 320, 1000])
def test_matches_float64(block: Block, way: str, rows: int) -> None:
    width = len(block.output)
    mixed = normal(len(MIX_ORDER), rows, width)
    exact = torch.bmm(mixed[PROJECTED].double(), block.projections.double().mT)
    ends = {"w": torch.tanh, "a": lambda h: h, "v": lambda h: h, "g": torch.sigmoid}
    low_rank = [
        ends[name](mixed[MIX_ORDER.index(name)].double() @ block.lora_in[name].double().T) @ out.double().T
        for name, out in zip(LORA_ORDER, block.lora_out, strict=True)
    ]
    with poisoned_memory():
        projected, lora = INPUTS[way](block, mixed, LORA_UP["own"], Library({}))
    assert relative_error(projected, exact) < 1e-3
    assert relative_error(lora, torch.stack(low_rank)) < 2e-3
