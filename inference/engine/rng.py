"""Random numbers that depend on a seed and a position alone: Philox-4x32-10.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
It is integer arithmetic throughout, so every device gives the same words. A row's 64-bit seed is
the key; the 128-bit counter is (block, position, 0, 0), and a block yields four 32-bit words.
"""

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words, 0 <= word < 2**32, for each counter and key (int64 tensors of 32-bit values that broadcast)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # A product of two 32-bit values overflows int64, but modulo 2**64: both its halves are right.
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (odd >> 32 & _LOW) ^ c1 ^ k0, (even >> 32 & _LOW) ^ c3 ^ k1
        c1, c3 = odd & _LOW, even & _LOW
        k0, k1 = k0 + _KEY_STEPS[0] & _LOW, k1 + _KEY_STEPS[1] & _LOW
    return c0, c1, c2, c3


def row_uniform(seed: Tensor, position: Tensor) -> Tensor:
    """One float64 in [0, 1 - 2**-32] a row: [N, 1] from `seed` and `position`, int64 [N, 1]."""
    return _words(seed, position, torch.zeros_like(position))[0].to(torch.float64) * 2.0**-32


def entry_uniforms(seed: Tensor, position: Tensor, entries: int) -> Tensor:
    """A float32 in [0, 1 - 2**-24] for each of a row's entries: [N, entries]; entry 4b + w is word w of block b."""
    blocks = torch.arange((entries + 3) // 4, device=seed.device)
    words = torch.stack(_words(seed, position, blocks), dim=-1).flatten(1)[:, :entries]
    return (words >> 8).to(torch.float32) * 2.0**-24


def _words(seed: Tensor, position: Tensor, block: Tensor) -> tuple[Tensor, ...]:
    zero = torch.zeros_like(position)
    return philox((block, position, zero, zero), (seed & _LOW, seed >> 32 & _LOW))
