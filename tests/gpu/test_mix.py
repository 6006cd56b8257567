"""Residual add, LayerNorm, token shift and mixes against float64."""

import pytest
import torch

from kernels.mix import kept_before, mix, mix_reference
from kernels.packed import DeviceRows
from tests.gpu.accuracy import DEVICE, normal, poisoned_memory, random_slots, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SPARE = 3
LENGTHS = {
    "one": [1],
    "decode": [1] * 5,
    "large decode": [1] * 700,
    "mixed": [7, 1, 30, 1],
    "many short": [3] * 400,
    "long": [2500],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("width", [320, 768, 2560, 4096, 8192])
@pytest.mark.parametrize("mixes", [1, 6])
@pytest.mark.parametrize("delta", ["none", "half", "float", "in two"])
def test_matches_float64(lengths: list[int], width: int, mixes: int, delta: str) -> None:
    tokens = sum(lengths)
    rows = DeviceRows.of_lengths(random_slots(len(lengths), SPARE), lengths)
    x, weight, bias, kept = normal(tokens, width), normal(width), normal(width), normal(len(lengths) + SPARE, width)
    x[:, 5] += 200  # models have such channels
    factors = torch.rand(mixes, width, device=DEVICE).half()
    added = {
        "none": None,
        "half": normal(tokens, width),
        "float": normal(tokens, width, dtype=torch.float32),
        "in two": normal(2, tokens, width),
    }[delta]
    zeroed = normal(tokens, width, dtype=torch.float32)

    # The sum is kept in fp16, and what follows starts from that.
    exactly_added = 0 if added is None else added.double().sum(0) if added.dim() == 3 else added.double()
    summed_exactly = (x.double() + exactly_added).half().double()
    kept_exactly = kept.double()
    _, exact = mix_reference(summed_exactly, None, weight.double(), bias.double(), factors.double(), kept_exactly, rows)
    with poisoned_memory():
        before = kept_before(kept, rows)
        summed, mixed = mix(x, added, weight, bias, factors, kept, before, rows, zeroed)

    assert relative_error(summed, summed_exactly) < 1e-4
    assert relative_error(mixed, exact) < 1e-3
    assert relative_error(kept, kept_exactly) < 1e-3
    assert not zeroed.any()


def test_a_token_gives_the_same_bits_wherever_it_lies() -> None:
    """A row alone and the same row among others: neighbours in a strip must not matter."""
    width, lengths = 1024, [300, 17, 2000]
    x, weight, bias, factors = normal(sum(lengths), width), normal(width), normal(width), normal(6, width)
    kept = normal(3, width)
    together = DeviceRows.of_lengths(torch.arange(3, device=DEVICE).int(), lengths)
    before = kept_before(kept, together)
    _, all_mixed = mix(x, None, weight, bias, factors, kept.clone(), before, together)
    alone = DeviceRows.of_lengths(torch.tensor([1], device=DEVICE).int(), [17])
    before = kept_before(kept, alone)
    _, mixed = mix(x[300:317].clone(), None, weight, bias, factors, kept.clone(), before, alone)
    assert torch.equal(mixed, all_mixed[:, 300:317])


@pytest.mark.parametrize("planes", [1, 5])
def test_kept_before_is_that_of_the_rows_of_several_tokens(planes: int) -> None:
    lengths, width = [1] * 40 + [2] * 70 + [1], 1032
    kept = normal(planes, len(lengths) + SPARE, width)
    slots = random_slots(len(lengths), SPARE)
    with poisoned_memory():
        before = kept_before(kept, DeviceRows.of_lengths(slots, lengths))
    assert before is not None and torch.equal(before[:, 40:], kept[:, slots.long()][:, 40:])
    assert kept_before(kept, DeviceRows.single_tokens(slots)) is None
