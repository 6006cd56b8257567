"""Token shift: each position's predecessor within its row."""

import torch
from torch import Tensor

from kernels.packed import PackedRows


def token_shift(x: Tensor, pool: Tensor, rows: PackedRows) -> Tensor:
    """Return x[t-1] for every position t; a row's first position gets what its slot kept from before.

    x:    [T, C] packed rows
    pool: [S, C] the last token each slot has seen, in the dtype of `x`; updated in place for `rows.slots`
    """
    previous = torch.empty_like(x)
    previous[1:] = x[:-1]
    previous[rows.first] = pool[rows.slots]
    pool[rows.slots] = x[rows.last]
    return previous
