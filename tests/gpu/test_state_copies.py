"""States out of the slots of a GPU and back, while work is queued on it. None may wait for that, or see it too late."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.cuda_backend import CudaBackend
from inference.engine.state_copies import BUFFERS, StateCopies
from inference.engine.synthetic import make_checkpoint
from tests.gpu.accuracy import normal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LAYERS, SLOTS, WIDTH, HEADS = 3, 7, 192, 3
LONG = 10**9  # clock cycles: half a second, which the host cannot need by itself
STATE_DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)

State = dict[str, Tensor]


class Pools:
    """State pools of a back end, without the rest of it."""

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        self.shift = normal(LAYERS, 2, SLOTS, WIDTH)
        self.wkv = normal(LAYERS, SLOTS, HEADS, 64, 64, dtype=dtype)
        self.copies = StateCopies(self.slot(0))
        # What a first call does, such as loading kernels, may wait for the device.
        self.put(0, self.copies.export(self.slot(0)))
        self.fill(0)
        torch.cuda.synchronize()

    def slot(self, number: int) -> State:
        return {"shift": self.shift[:, :, number], "wkv": self.wkv[:, number]}

    def put(self, number: int, state: State) -> None:
        self.copies.import_into(self.slot(number), state)

    def fill(self, value: float) -> None:
        """As a step that moves every slot."""
        self.shift.fill_(value)
        self.wkv.fill_(value)


@pytest.fixture
def pools() -> Iterator[Pools]:
    yield Pools()
    torch.cuda.synchronize()


def random_state(dtype: torch.dtype = torch.float16) -> State:
    shift, wkv = torch.randn(LAYERS, 2, WIDTH), torch.randn(LAYERS, HEADS, 64, 64)
    return {"shift": shift.half(), "wkv": wkv.to(dtype)}


def same(state: State, expected: State) -> bool:
    return all(
        state[name].dtype == tensor.dtype and torch.equal(state[name].cpu(), tensor.cpu())
        for name, tensor in expected.items()
    )


def at_work() -> bool:
    return not torch.cuda.current_stream().query()


@STATE_DTYPES
def test_an_export_is_the_state_between_what_was_launched_before_and_after(dtype: torch.dtype) -> None:
    pools = Pools(dtype)
    new = [normal(*pool.shape, dtype=pool.dtype) for pool in (pools.shift, pools.wkv)]
    torch.cuda._sleep(LONG)
    pools.shift.copy_(new[0])
    pools.wkv.copy_(new[1])
    coming = pools.copies.export(pools.slot(2))
    pools.fill(torch.nan)
    assert same(coming, {"shift": new[0][:, :, 2], "wkv": new[1][:, 2]})


def test_an_export_does_not_wait(pools: Pools) -> None:
    torch.cuda._sleep(LONG)
    coming = pools.copies.export(pools.slot(1))
    assert len(coming) == 2
    assert "wkv" in coming
    assert coming.nbytes == sum(tensor.nbytes for tensor in pools.slot(1).values())
    assert at_work()
    assert same(coming, pools.slot(1))


def test_an_import_does_not_wait(pools: Pools) -> None:
    state = random_state()
    torch.cuda._sleep(LONG)
    pools.put(1, state)
    assert at_work()
    assert same(pools.slot(1), state)


def test_what_was_exported_is_ordinary_memory(pools: Pools) -> None:
    coming = pools.copies.export(pools.slot(1))
    for tensor in coming.values():
        assert tensor.device.type == "cpu"
        assert tensor.is_contiguous()
        assert not tensor.is_pinned(), "pinned memory is scarce, and is used again"


def test_more_exports_than_buffers(pools: Pools) -> None:
    torch.cuda._sleep(LONG)
    coming = []
    for value in range(5 * BUFFERS):
        pools.fill(value)
        coming.append(pools.copies.export(pools.slot(value % SLOTS)))
    pools.fill(torch.nan)
    for value, state in enumerate(coming):
        assert same(state, {name: torch.full_like(tensor, value) for name, tensor in pools.slot(0).items()}), value


def test_more_imports_than_buffers(pools: Pools) -> None:
    states = [random_state() for _ in range(5 * BUFFERS)]
    torch.cuda._sleep(LONG)
    coming = []
    for number, state in enumerate(states):
        pools.put(number % SLOTS, state)
        coming.append(pools.copies.export(pools.slot(number % SLOTS)))
        pools.fill(torch.nan)
    for number, state in enumerate(states):
        assert same(coming[number], state), number


@STATE_DTYPES
def test_a_state_comes_back_bit_for_bit_and_changes_no_other_slot(dtype: torch.dtype) -> None:
    pools, state = Pools(dtype), random_state(dtype)
    pools.put(3, state)
    assert same(pools.copies.export(pools.slot(3)), state)
    for number in set(range(SLOTS)) - {3}:
        assert not any(tensor.any() for tensor in pools.slot(number).values()), number


def test_a_state_may_be_put_back_before_it_has_come_to_the_host(pools: Pools) -> None:
    state = random_state()
    pools.put(1, state)
    torch.cuda._sleep(LONG)
    coming = pools.copies.export(pools.slot(1))
    pools.fill(torch.nan)
    pools.put(4, coming)
    assert same(pools.slot(4), state)


def test_a_state_of_other_types_is_converted(pools: Pools) -> None:
    """An initial state that was uploaded is float32."""
    state = {name: torch.randn(tensor.shape) for name, tensor in pools.slot(0).items()}
    pools.put(2, state)
    assert same(pools.slot(2), {name: tensor.half() for name, tensor in state.items()})


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(pools: Pools) -> None:
    state = random_state()
    with pytest.raises(ValueError, match=r"state tensor wkv: found \[3, 3, 64, 32\], expected shape \[3, 3, 64, 64\]"):
        pools.put(1, state | {"wkv": state["wkv"][..., :32]})
    with pytest.raises(ValueError, match=r"state tensor shift: found missing, expected shape \[3, 2, 192\]"):
        pools.put(1, {"wkv": state["wkv"]})
    assert not any(tensor.any() for tensor in pools.slot(1).values())


def test_the_back_end_exports_imports_and_copies(tmp_path) -> None:
    """In one test, so that one process alone measures the products."""
    path = tmp_path / "tiny.pth"
    make_checkpoint(path, "tiny")
    backend = CudaBackend(path, slots=4)
    prompt = list(range(100, 120))

    def begin(slot: int) -> None:
        backend.open_slot(slot, Sampling(temperature=0.0), [], [], prompt)

    def export(slot: int) -> State:
        return dict(backend.export_state(slot))

    begin(0)
    assert not any(tensor.any() for tensor in export(0).values()), "a fresh row's state is zero"
    backend.launch(StepPlan(chunks=[Chunk(0, prompt, True)])).result()
    before = export(0)
    assert all(tensor.any() for tensor in before.values())

    coming = backend.export_state(0)
    steps = [backend.launch(StepPlan(decode=[0])) for _ in range(2)]
    assert same(coming, before), "steps behind the export do not change it"
    for step in steps:
        step.result()
    assert not same(export(0), before), "the steps did move the state"

    begin(1)
    backend.import_state(1, before)
    backend.copy_state(1, 2)
    begin(1)
    assert not any(tensor.any() for tensor in export(1).values()), "what an earlier row left is cleared"
    backend.import_state(1, coming)
    assert same(export(1), before)
    assert same(export(2), before)
    with pytest.raises(ValueError, match="state tensor wkv: found missing"):
        backend.import_state(1, {"shift": before["shift"]})
