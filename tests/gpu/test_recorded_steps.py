"""Recorded steps: the same kernels over rows that are known only when the step runs."""

from pathlib import Path

import pytest
import torch

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.cuda_backend import CudaBackend
from inference.engine.cuda_graphs import MOST_RECORDED_TOKENS
from inference.engine.cuda_model import CudaModel, CudaState
from inference.engine.synthetic import make_checkpoint
from inference.engine.weights import Checkpoint
from kernels.mix import kept_before, mix
from kernels.packed import DeviceRows, RecordedRows
from kernels.time_mix import HEAD_SIZE, VECTORS, time_mix
from tests.gpu.accuracy import DEVICE, normal, poisoned_memory, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TOKENS, SLOTS = 640, 300  # the last slot is the dummy
LENGTHS = {
    "one token": [1],
    "one prompt": [36],
    "decodes": [1] * 250,
    "prompts": [36] * 17,
    "more rows than run side by side": [3] * 200,
    "decodes and prompts": [1] * 200 + [5, 1, 33, 16, 17, 15, 300],
    "all of it": [1] * 40 + [600],
}


def slots_for(lengths: list[int]) -> list[int]:
    return torch.randperm(SLOTS - 1)[: len(lengths)].tolist()


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("width", [768, 4096])
@pytest.mark.parametrize("state_dtype", [torch.float16, torch.float32], ids=str)
def test_kernels_agree_with_those_of_a_step_that_is_not_recorded(
    lengths: list[int], width: int, state_dtype: torch.dtype
) -> None:
    tokens, slots = sum(lengths), slots_for(lengths)
    recorded = RecordedRows(TOKENS, SLOTS + 10, SLOTS - 1, DEVICE)
    recorded.fill(slots, lengths, [0] * tokens)
    plain = DeviceRows.of_lengths(torch.tensor(slots, dtype=torch.int32, device=DEVICE), lengths)

    x, weight, bias, kept = normal(TOKENS, width), normal(width), normal(width), normal(SLOTS, width)
    factors = torch.rand(6, width, device=DEVICE).half()
    r, k, v, v_first = (normal(TOKENS, width, scale=0.5) for _ in range(4))
    lora, vectors = normal(4, TOKENS, width), [normal(width, scale=0.3) for _ in VECTORS]
    state = normal(SLOTS, width // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE, scale=0.2, dtype=state_dtype)

    kept_plain, state_plain = kept.clone(), state.clone()
    before_plain = kept_before(kept_plain, plain)
    _, mixed_plain = mix(x[:tokens], None, weight, bias, factors, kept_plain, before_plain, plain)
    parts = [tensor[:tokens].contiguous() for tensor in (r, k, v)]
    out_plain = time_mix(
        *parts, lora[:, :tokens].contiguous(), v_first[:tokens].contiguous(), vectors, state_plain, plain
    )
    with poisoned_memory():
        before = kept_before(kept, recorded)
        _, mixed = mix(x, None, weight, bias, factors, kept, before, recorded)
        out = time_mix(r, k, v, lora, v_first, vectors, state, recorded)

    assert torch.isfinite(out).all() and torch.isfinite(mixed).all()
    assert relative_error(mixed[:, :tokens], mixed_plain) < 1e-6
    assert relative_error(kept[:-1], kept_plain[:-1]) < 1e-6
    assert relative_error(out[:tokens], out_plain) < 1e-3  # one prompt alone is worked on by another kernel
    assert relative_error(state[:-1], state_plain[:-1]) < 6e-4


def test_a_recorded_kernel_sees_the_rows_that_were_filled_last() -> None:
    width = 768
    r, k, v, v_first = (normal(TOKENS, width, scale=0.5) for _ in range(4))
    lora, vectors = normal(4, TOKENS, width), [normal(width, scale=0.3) for _ in VECTORS]
    state = normal(SLOTS, width // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE, scale=0.2)
    rows = RecordedRows(TOKENS, SLOTS + 10, SLOTS - 1, DEVICE)
    time_mix(r, k, v, lora, v_first, vectors, state.clone(), rows)
    moved = state.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = time_mix(r, k, v, lora, v_first, vectors, moved, rows)

    for lengths in LENGTHS.values():
        slots, tokens = slots_for(lengths), sum(lengths)
        moved.copy_(state)
        rows.fill(slots, lengths, [0] * tokens)
        graph.replay()
        expected = state.clone()
        plain = DeviceRows.of_lengths(torch.tensor(slots, dtype=torch.int32, device=DEVICE), lengths)
        exact = time_mix(
            *(tensor[:tokens].contiguous() for tensor in (r, k, v)),
            lora[:, :tokens].contiguous(), v_first[:tokens].contiguous(), vectors, expected, plain,
        )  # fmt: skip
        assert relative_error(out[:tokens], exact) < 1e-3
        assert relative_error(moved[:-1], expected[:-1]) < 6e-4


def test_prompts_together_give_what_each_gives_alone(tmp_path: Path) -> None:
    """All but the longest are recorded steps. In one test: a back end takes a while to make."""
    path = tmp_path / "tiny.pth"
    make_checkpoint(path, "tiny")
    backend = CudaBackend(path, slots=12)
    sizes = [MOST_RECORDED_TOKENS + 1, 513, 576, 5]
    prompts = [torch.randint(300, 60_000, (size,)).tolist() for size in sizes]
    greedy = Sampling(temperature=0.0)

    def run(first_slot: int, batches: list[list[int]]) -> tuple[list[list[int]], list[dict[str, torch.Tensor]]]:
        """Tokens and states by prompt; `batches` says which prompts begin in one step."""
        slot_of = {index: first_slot + index for batch in batches for index in batch}
        drawn: dict[int, list[int]] = {}
        running: list[int] = []
        for batch in batches:
            for index in batch:
                backend.open_slot(slot_of[index], greedy, [], [], prompts[index])
            chunks = [Chunk(slot_of[index], prompts[index], sample=True) for index in batch]
            plan = StepPlan(decode=[slot_of[index] for index in running], chunks=chunks)
            result = backend.launch(plan).result()
            running += batch
            for index in running:
                drawn.setdefault(index, []).append(result.tokens[slot_of[index]])
        while any(len(tokens) < 8 for tokens in drawn.values()):
            unfinished = [index for index, tokens in drawn.items() if len(tokens) < 8]
            result = backend.launch(StepPlan(decode=[slot_of[index] for index in unfinished])).result()
            for index in unfinished:
                drawn[index].append(result.tokens[slot_of[index]])
        order = range(len(prompts))
        return [drawn[index] for index in order], [dict(backend.export_state(slot_of[index])) for index in order]

    together, states = run(0, [[1, 2, 3], [0]])
    after_each_other, states_after = run(4, [[0], [1], [2], [3]])
    alone = []
    for index in range(len(prompts)):
        backend.open_slot(8, greedy, [], [], prompts[index])
        drawn = [backend.launch(StepPlan(chunks=[Chunk(8, prompts[index], sample=True)])).result().tokens[8]]
        drawn += [backend.launch(StepPlan(decode=[8])).result().tokens[8] for _ in range(7)]
        alone.append(drawn)
        for name, tensor in backend.export_state(8).items():
            assert relative_error(states[index][name], tensor) < 1e-2, (index, name)
            assert relative_error(states_after[index][name], tensor) < 1e-2, (index, name)
    assert together == alone
    assert after_each_other == alone


def test_a_prompt_in_pieces_beside_other_rows_draws_once_it_is_through(tmp_path: Path) -> None:
    path = tmp_path / "tiny.pth"
    make_checkpoint(path, "tiny")
    backend = CudaBackend(path, slots=6)
    greedy = Sampling(temperature=0.0)
    long, short, other = (torch.randint(300, 60_000, (size,)).tolist() for size in (70, 9, 20))

    def alone(prompt: list[int], tokens: int) -> list[int]:
        backend.open_slot(5, greedy, [], [], prompt)
        drawn = [backend.launch(StepPlan(chunks=[Chunk(5, prompt, sample=True)])).result().tokens[5]]
        return drawn + [backend.launch(StepPlan(decode=[5])).result().tokens[5] for _ in range(tokens - 1)]

    for slot, prompt in enumerate((long, short, other)):
        backend.open_slot(slot, greedy, [], [], prompt)
    steps = [
        StepPlan(chunks=[Chunk(0, long[:30], sample=False)]),  # nothing is drawn
        StepPlan(chunks=[Chunk(0, long[30:31], sample=False), Chunk(1, short, sample=True)]),
        StepPlan(decode=[1], chunks=[Chunk(0, long[31:60], sample=False), Chunk(2, other, sample=True)]),
        StepPlan(decode=[1, 2], chunks=[Chunk(0, long[60:], sample=True)], logprobs={0: 1, 2: 0}),
        StepPlan(decode=[0, 1, 2]),
    ]
    pending = [backend.launch(plan) for plan in steps[:2]]  # as the step loop does: two in flight
    results = [step.result() for step in pending] + [backend.launch(plan).result() for plan in steps[2:]]

    assert [sorted(result.tokens) for result in results] == [[], [1], [1, 2], [0, 1, 2], [0, 1, 2]]
    assert [result.tokens[1] for result in results[1:]] == alone(short, 4)
    assert [result.tokens[2] for result in results[2:]] == alone(other, 3)
    assert [result.tokens[0] for result in results[3:]] == alone(long, 2)
    best = results[3].logprobs[0].top[0]
    assert best[0] == results[3].tokens[0] and best[1] == pytest.approx(results[3].logprobs[0].logprob)
    assert sorted(results[3].logprobs) == [0, 2]


@pytest.mark.parametrize("lengths", [[1, 40, 2, 3, 300, 1, 2], [36], [2] * 5, [1] * 9 + [17]], ids=str)
def test_the_ends_of_rows_are_finished_as_all_of_them_are(tmp_path: Path, lengths: list[int]) -> None:
    path = tmp_path / "tiny.pth"
    make_checkpoint(path, "tiny")
    model = CudaModel(Checkpoint(path), DEVICE)
    tokens = torch.randint(0, model.sizes.vocab, (sum(lengths),), dtype=torch.int32, device=DEVICE)
    rows = DeviceRows.of_lengths(torch.tensor(slots_for(lengths), dtype=torch.int32, device=DEVICE), lengths)
    whole, ends = (CudaState.zeros(model.sizes, SLOTS, DEVICE, torch.float16) for _ in range(2))
    for state in (whole, ends):
        torch.manual_seed(7)
        state.shift.copy_(normal(*state.shift.shape))
        state.wkv.copy_(normal(*state.wkv.shape, scale=0.2))
    with torch.inference_mode():
        x, delta = model.forward(tokens, whole, rows)
        last = rows.row_start[1:].long() - 1
        expected = (x + delta)[last]
        x, y = model.advance(tokens, ends, rows)
        at, of_ends = rows.ends(lengths)
        with poisoned_memory():
            x, delta = model.finish(x[at], y[at], ends, of_ends)
        found = (x + delta)[of_ends.row_start[1:].long() - 1]
    assert relative_error(found, expected.double()) < 1e-3
    assert relative_error(ends.shift, whole.shift.double()) < 1e-3
    assert torch.equal(ends.wkv, whole.wkv)
