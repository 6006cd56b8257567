import pytest
import torch

from inference.engine.rng import entry_uniforms, philox, row_uniform

# Random123 1.14, tests/kat_vectors, "philox4x32 10": counter, key, words.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter, key, words):
    result = philox(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert [int(word) for word in result] == words


def test_both_halves_of_a_seed_and_the_position_matter():
    seeds = torch.tensor([[0], [1], [1 << 32], [-1], [0]])
    positions = torch.tensor([[0], [0], [0], [0], [1]])
    assert len(set(row_uniform(seeds, positions).flatten().tolist())) == 5
    assert entry_uniforms(seeds, positions, 6).unique().numel() == 30


def test_uniforms_lie_in_zero_to_one():
    seeds = torch.arange(200).unsqueeze(1)
    uniforms = entry_uniforms(seeds, torch.zeros_like(seeds), 999)
    assert uniforms.shape == (200, 999)
    assert 0 <= uniforms.min() < 1e-4
    assert 1 - 1e-4 < uniforms.max() < 1
    assert abs(float(uniforms.mean()) - 0.5) < 0.005
