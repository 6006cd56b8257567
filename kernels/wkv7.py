"""The WKV-7 recurrence (RWKV-7 "Goose", arXiv:2503.14456, equation 17) over packed rows."""

import torch
from torch import Tensor

from kernels.packed import PackedRows

HEAD_SIZE = 64


def wkv7(
    r: Tensor, decay: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, pool: Tensor, rows: PackedRows
) -> Tensor:
    """Advance each row's state over its tokens, and read it at each of them.

    For every head, with the state S [64 value rows i, 64 key columns j], at each token:

        removed_i = sum_j S_ij kk_j
        S_ij      = S_ij decay_j - removed_i (kk_j a_j) + v_i k_j
        y_i       = sum_j S_ij r_j

    r, decay, k, v, kk, a: [T, H, 64] packed rows, any float dtype. `decay` is in (0, 1), `kk` has unit length per head.
    pool: [S, H, 64, 64] float32 or float64, (value, key); updated in place for `rows.slots`.
    Returns y [T, H, 64] in the dtype of `pool`, which is also that of the arithmetic.

    All rows that still have a token advance together, so one decode token of B rows is one vectorised update.
    """
    inputs = [x.to(pool.dtype) for x in (r, decay, k, v, kk, a)]
    if rows.time_major is not None:
        inputs = [x.index_select(0, rows.time_major) for x in inputs]
    r, decay, k, v, kk, a = (x.reshape(-1, 1, HEAD_SIZE) for x in inputs)  # [T*H, 1, 64]
    # Both rank-one updates as one product: S += [v, kk] [k, -kk*a], with `removed` in place of kk on the left.
    right = torch.cat((k, -kk * a), dim=1)  # [T*H, 2, 64]

    heads = pool.shape[1]
    slots = rows.slots[rows.by_length]
    state = pool[slots].view(-1, HEAD_SIZE, HEAD_SIZE)  # [B*H, 64, 64], longest row first
    y = torch.empty_like(r)
    begin = 0
    for active in rows.active:
        s, step = state[: active * heads], slice(begin, begin + active * heads)
        removed = torch.bmm(kk[step], s.mT)  # [n, 1, 64]: a row vector times the transpose is the fast order on a CPU
        left = torch.cat((v[step], removed), dim=1).mT  # [n, 64, 2]
        s.mul_(decay[step]).baddbmm_(left, right[step])
        torch.bmm(r[step], s.mT, out=y[step])
        begin = step.stop
    pool[slots] = state.view(-1, heads, HEAD_SIZE, HEAD_SIZE)

    y = y.view(-1, heads, HEAD_SIZE)
    if rows.time_major is None:
        return y
    return torch.empty_like(y).index_copy_(0, rows.time_major, y)
