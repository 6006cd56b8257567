"""WKV-7 with what surrounds it against float64, token by token."""

import pytest
import torch
from torch import Tensor

from kernels.packed import DeviceRows
from kernels.time_mix import HEAD_SIZE, VECTORS, time_mix, time_mix_reference
from tests.gpu.accuracy import normal, poisoned_memory, random_slots, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SPARE = 2
STATE_DTYPES = [torch.float16, torch.float32]
LENGTHS = {
    "one": [1],
    "decode": [1] * 40,
    "large decode": [1] * 333,
    "mixed": [5, 1, 33, 16, 17, 15, 32],
    "decode first": [1, 1, 1, 20, 1, 2],
    "long": [200],
    "many": [9] * 20,
}


def inputs(tokens: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """r, k, v, lora, v_first, vectors"""
    r, k, v, v_first = (normal(tokens, width, scale=0.5) for _ in range(4))
    return r, k, v, normal(4, tokens, width), v_first, [normal(width, scale=0.3) for _ in VECTORS]


def doubled(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.double() for tensor in tensors]


def check(lengths: list[int], width: int, state_dtype: torch.dtype, *, first_layer: bool, w_offset: float = 0) -> None:
    r, k, v, lora, v_first, vectors = inputs(sum(lengths), width)
    vectors[0] += w_offset
    rows = DeviceRows.of_lengths(random_slots(len(lengths), SPARE), lengths)
    shape = (len(lengths) + SPARE, width // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE)
    state = normal(*shape, scale=0.2, dtype=state_dtype)
    before, exact_state = state.clone(), state.double()
    exact = time_mix_reference(
        *doubled([r, k, v, lora]), None if first_layer else v_first.double(), doubled(vectors), exact_state, rows
    )
    with poisoned_memory():
        out = time_mix(r, k, v, lora, None if first_layer else v_first, vectors, state, rows)

    assert relative_error(out, exact) < 1e-3
    assert relative_error(state, exact_state) < 6e-4
    others = torch.ones(len(state), dtype=torch.bool, device=state.device)
    others[rows.slots.long()] = False
    assert torch.equal(state[others], before[others])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("width", [768, 2560, 4096])
@pytest.mark.parametrize("state_dtype", STATE_DTYPES, ids=str)
@pytest.mark.parametrize("first_layer", [True, False], ids=["first layer", "later layer"])
def test_matches_float64(lengths: list[int], width: int, state_dtype: torch.dtype, first_layer: bool) -> None:
    check(lengths, width, state_dtype, first_layer=first_layer)


@pytest.mark.parametrize("w_offset", [-8.0, 8.0], ids=["decay near 1", "strongest decay"])
@pytest.mark.parametrize("state_dtype", STATE_DTYPES, ids=str)
def test_extreme_decays(w_offset: float, state_dtype: torch.dtype) -> None:
    check([500, 3], 128, state_dtype, first_layer=False, w_offset=w_offset)


def test_equal_keys() -> None:
    """Each token removes what the one before wrote: the hardest case for solving a chunk at once."""
    width, tokens = 128, 320
    r, k, v, lora, v_first, vectors = inputs(tokens, width)
    k[:] = k[0]
    lora[1] = 8.0  # a = 1
    vectors[0][:] = -8.0  # decay = 1
    rows = DeviceRows.of_lengths(random_slots(1), [tokens])
    state = normal(4, 2, HEAD_SIZE, HEAD_SIZE, dtype=torch.float32)
    exact_state = state.double()
    exact = time_mix_reference(*doubled([r, k, v, lora]), v_first.double(), doubled(vectors), exact_state, rows)
    out = time_mix(r, k, v, lora, v_first, vectors, state, rows)
    assert relative_error(out, exact) < 1e-3
    assert relative_error(state, exact_state) < 1e-3


def test_large_r_and_k_stay_exact() -> None:
    """Twenty times what models have, under the strongest decay, which scales them by up to 2^7."""
    width, tokens = 128, 64
    r, k, v, lora, v_first, vectors = inputs(tokens, width)
    r, k = r * 20, k * 20
    vectors[0][:] = 8.0
    rows = DeviceRows.of_lengths(random_slots(1), [tokens])
    state = torch.zeros(4, 2, HEAD_SIZE, HEAD_SIZE, device=r.device)
    exact_state = state.double()
    exact = time_mix_reference(*doubled([r, k, v, lora]), v_first.double(), doubled(vectors), exact_state, rows)
    out = time_mix(r, k, v, lora, v_first, vectors, state, rows)
    assert relative_error(out, exact) < 1e-3
    assert relative_error(state, exact_state) < 1e-3


def test_absurd_r_and_k_stay_finite() -> None:
    """Operands are bounded, so that one token cannot turn a state into NaN."""
    width, tokens = 128, 64
    r, k, v, lora, v_first, vectors = inputs(tokens, width)
    vectors[0][:] = 8.0
    vectors[VECTORS.index("r_k")][:] = 0  # its product would be infinite in fp16, as it should be
    rows = DeviceRows.of_lengths(random_slots(1), [tokens])
    state = torch.zeros(4, 2, HEAD_SIZE, HEAD_SIZE, device=r.device)
    out = time_mix(r * 4000, k * 4000, v, lora, v_first, vectors, state, rows)
    assert out.isfinite().all()
    assert state.isfinite().all()


@pytest.mark.parametrize("state_dtype", STATE_DTYPES, ids=str)
def test_a_row_in_parts_is_the_row(state_dtype: torch.dtype) -> None:
    width, tokens = 768, 75
    r, k, v, lora, v_first, vectors = inputs(tokens, width)
    slots = random_slots(1)
    state = normal(4, width // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE, scale=0.2, dtype=state_dtype)
    whole = state.clone()
    out = time_mix(r, k, v, lora, v_first, vectors, whole, DeviceRows.of_lengths(slots, [tokens]))
    begin = 0
    for length in (1, 20, 53, 1):
        part = slice(begin, begin + length)
        rows = DeviceRows.of_lengths(slots, [length])
        lora_part = lora[:, part].contiguous()
        piece = time_mix(r[part], k[part], v[part], lora_part, v_first[part], vectors, state, rows)
        assert relative_error(piece, out[part].double()) < 1.5e-3
        begin += length
    assert relative_error(state, whole.double()) < 1e-3
