import json
import os
import subprocess
import sys
from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.backends import create_backend
from inference.engine.model import Model, StatePool
from inference.engine.torch_backend import TorchBackend
from inference.engine.weights import Checkpoint
from kernels.packed import PackedRows
from kernels.wkv7 import wkv7
from tests.engine.reference import ReferenceModel, log_softmax

GREEDY = Sampling(temperature=0)
CPU = torch.device("cpu")


def random_ids(count, *, seed, vocab=65530):
    return torch.randint(1, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


PROMPT = random_ids(20, seed=3)


@pytest.fixture(scope="module")
def backend(tiny_checkpoint):
    return TorchBackend(tiny_checkpoint, slots=6)


def open_greedy(backend, slot):
    backend.open_slot(slot, GREEDY, [0], [], [])


def prefill(backend, slot, tokens, pieces=None):
    """Feed `tokens` in pieces of these lengths; return the logprob of each token but the first, and the drawn id."""
    begin, logprobs = 0, []
    for length in pieces or [len(tokens)]:
        end = begin + length
        following = tokens[end] if end < len(tokens) else -1
        chunk = Chunk(slot, tokens[begin:end], end == len(tokens), prompt_logprobs=0, next_token=following)
        result = backend.launch(StepPlan(chunks=[chunk])).result()
        logprobs += [entry.logprob for entry in result.prompt_logprobs[slot]]
        begin = end
    return logprobs, result.tokens[slot]


def decode(backend, slot, count):
    return [backend.launch(StepPlan(decode=[slot])).result().tokens[slot] for _ in range(count)]


def continuation(backend, slot, tokens=PROMPT, count=12):
    """What a fresh row that is alone in the batch gets: prompt logprobs and greedy ids."""
    open_greedy(backend, slot)
    logprobs, first = prefill(backend, slot, tokens)
    return logprobs, [first, *decode(backend, slot, count - 1)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_logits_agree_with_the_float64_transcription(deep_checkpoint, dtype, bound):
    """Twelve layers; three rows of different lengths share two forward passes."""
    rows = [random_ids(length, seed=length, vocab=512) for length in (2, 9, 24)]
    slots = [2, 0, 3]
    model = Model(Checkpoint(deep_checkpoint), CPU, dtype)
    state = StatePool.zeros(model.sizes, 4, CPU, dtype)
    found = [[], [], []]
    cuts = [(0, 0, 0), (1, 8, 11), (2, 9, 24)]
    for begins, ends in pairwise(cuts):
        pieces = [row[begin:end] for row, begin, end in zip(rows, begins, ends, strict=True)]
        lengths = [len(piece) for piece in pieces]
        hidden = model.forward(torch.tensor([*chain(*pieces)]), state, PackedRows(slots, lengths, CPU))
        for row, logits in zip(found, model.logits(hidden).split(lengths), strict=True):
            row.append(logits)

    reference = ReferenceModel(deep_checkpoint)
    worst = 0.0
    for tokens, slot, logits in zip(rows, slots, found, strict=True):
        expected = reference.run(tokens)
        error = np.abs(torch.cat(logits).numpy() - expected).max(axis=1) / np.abs(expected).max(axis=1)
        worst = max(worst, error.max())
        np.testing.assert_allclose(state.wkv[:, slot].numpy(), reference.S, atol=bound)
    print(f"\n{dtype}: max relative error of the logits {worst:.2e}")
    assert worst < bound


@pytest.mark.parametrize(
    ("dtype", "words"),
    [(torch.float32, "float32"), (torch.float64, "float64"), (torch.bfloat16, "bfloat16, float32 states")],
)
def test_a_back_end_says_in_which_data_types_it_works(tiny_checkpoint, dtype, words):
    assert TorchBackend(tiny_checkpoint, 1, "cpu", dtype).dtype == words


def test_greedy_text_is_that_of_the_official_package(small_checkpoint):
    prompt = random_ids(16, seed=5)
    program = """if True:
        import json, sys
        from rwkv.model import RWKV
        model = RWKV(model=sys.argv[1], strategy="cpu fp32")
        tokens, state, drawn = json.loads(sys.argv[2]), None, []
        for _ in range(64):
            logits, state = model.forward(tokens, state)
            tokens = [int(logits.argmax())]
            drawn += tokens
        print(json.dumps(drawn))
    """
    arguments = [sys.executable, "-c", program, str(small_checkpoint.with_suffix("")), json.dumps(prompt)]
    environment = os.environ | {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
    official = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout
    expected = json.loads(official.splitlines()[-1])
    assert len(set(expected)) > 16, "a text that repeats itself would prove little"

    assert continuation(TorchBackend(small_checkpoint, slots=1), 0, prompt, count=64)[1] == expected


@pytest.mark.parametrize("pieces", [[1] * 20, [5, 1, 14], [19, 1]], ids=["stepping", "uneven", "last alone"])
def test_any_chunking_gives_the_same(backend, pieces):
    logprobs, tokens = continuation(backend, 0)
    state = backend.export_state(0)

    open_greedy(backend, 1)
    same_logprobs, first = prefill(backend, 1, PROMPT, pieces)
    assert [first, *decode(backend, 1, 11)] == tokens
    np.testing.assert_allclose(same_logprobs, logprobs, atol=1e-4)
    for name, tensor in backend.export_state(1).items():
        torch.testing.assert_close(tensor, state[name], atol=1e-4, rtol=1e-4)


def test_company_in_the_batch_changes_nothing(backend):
    alone = {slot: continuation(backend, slot, random_ids(5 + 7 * slot, seed=slot), count=6)[1] for slot in range(4)}
    for slot in range(4):
        open_greedy(backend, slot)
    prompts = {slot: random_ids(5 + 7 * slot, seed=slot) for slot in range(4)}

    # Row 0 decodes while the others are prefilled, row 3 in two pieces.
    first = backend.launch(StepPlan(chunks=[Chunk(0, prompts[0], True), Chunk(3, prompts[3][:9], False)])).result()
    assert list(first.tokens) == [0]
    chunks = [Chunk(3, prompts[3][9:], True), Chunk(1, prompts[1], True), Chunk(2, prompts[2], True)]
    second = backend.launch(StepPlan(decode=[0], chunks=chunks)).result()
    together = {slot: [second.tokens[slot]] for slot in (1, 2, 3)} | {0: [first.tokens[0], second.tokens[0]]}
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 1, 0, 2], [1, 2, 3, 0]):
        for slot, token in backend.launch(StepPlan(decode=order)).result().tokens.items():
            together[slot].append(token)
    assert together == {slot: tokens[: len(together[slot])] for slot, tokens in alone.items()}


def test_a_state_that_left_and_came_back_continues_the_same(backend, tiny_checkpoint):
    _, tokens = continuation(backend, 0)
    open_greedy(backend, 0)
    backend.launch(StepPlan(chunks=[Chunk(0, PROMPT[:13], False)])).result()
    state = backend.export_state(0)
    sizes = Checkpoint(tiny_checkpoint).dimensions
    assert state["shift"].shape == (sizes.layers, 2, sizes.width)
    assert state["wkv"].shape == (sizes.layers, sizes.heads, 64, 64)

    open_greedy(backend, 4)
    backend.copy_state(0, 4)
    decode(backend, 0, 1)  # the exported and the copied state are their own: this moves neither
    other = TorchBackend(tiny_checkpoint, slots=2)
    open_greedy(other, 1)
    other.import_state(1, state)
    for engine, slot in ((other, 1), (backend, 4)):
        _, first = prefill(engine, slot, PROMPT[13:])
        assert [first, *decode(engine, slot, 11)] == tokens
    assert torch.equal(other.export_state(0)["wkv"], torch.zeros_like(state["wkv"]))


def test_opening_a_slot_forgets_its_last_row(backend):
    _, tokens = continuation(backend, 5)
    assert continuation(backend, 5)[1] == tokens


def test_a_state_of_another_shape_is_refused(backend):
    state = backend.export_state(0)
    with pytest.raises(ValueError, match=r"state tensor wkv: found \[2, 2, 64, 32\], expected shape \[2, 2, 64, 64\]"):
        backend.import_state(1, state | {"wkv": state["wkv"][..., :32]})
    with pytest.raises(ValueError, match=r"state tensor shift: found missing, expected shape \[2, 2, 128\]"):
        backend.import_state(1, {"wkv": state["wkv"]})


def test_logprobs_are_the_models_own(backend, tiny_checkpoint):
    """Of prompt and drawn tokens, over a chunk that is longer than what is computed at a time."""
    prompt = random_ids(70, seed=9)
    expected = log_softmax(ReferenceModel(tiny_checkpoint).run(prompt))

    backend.open_slot(0, Sampling(temperature=0, logit_bias={7: 100.0}), [0], [], prompt)
    chunk = Chunk(0, prompt[:68], False, prompt_logprobs=2, next_token=prompt[68])
    prompt_logprobs = backend.launch(StepPlan(chunks=[chunk])).result().prompt_logprobs[0]
    chunk = Chunk(0, prompt[68:], True, prompt_logprobs=2)
    result = backend.launch(StepPlan(chunks=[chunk], logprobs={0: 3})).result()
    prompt_logprobs += result.prompt_logprobs[0]

    assert len(prompt_logprobs) == 69
    for position, entry in enumerate(prompt_logprobs):
        assert entry.logprob == pytest.approx(expected[position, prompt[position + 1]], abs=1e-3)
        assert [token for token, _ in entry.top] == expected[position].argsort()[:-3:-1].tolist()
    assert result.tokens == {0: 7}  # the bias draws it, and does not show in its logprob
    assert result.logprobs[0].logprob == pytest.approx(expected[-1, 7], abs=1e-3)
    best = expected[-1].argsort()[:-4:-1]
    assert result.logprobs[0].top == [(token, pytest.approx(expected[-1, token], abs=1e-3)) for token in best.tolist()]


def test_rows_of_one_step_get_the_logprobs_they_asked_for(backend):
    prompts = {slot: random_ids(4 + slot, seed=slot) for slot in (1, 2, 3)}
    alone = {}
    for slot, prompt in prompts.items():
        open_greedy(backend, slot)
        chunk = Chunk(slot, prompt, True, prompt_logprobs=0)
        alone[slot] = backend.launch(StepPlan(chunks=[chunk], logprobs={slot: 0})).result()

    continuation(backend, 0, count=1)
    for slot in prompts:
        open_greedy(backend, slot)
    chunks = [Chunk(slot, prompt, True, prompt_logprobs=0) for slot, prompt in prompts.items()]
    result = backend.launch(StepPlan(decode=[0], chunks=chunks, logprobs={1: 4, 3: 0})).result()
    assert {slot: len(entry.top) for slot, entry in result.logprobs.items()} == {1: 4, 3: 0}
    for slot, entry in result.logprobs.items():
        assert entry.logprob == pytest.approx(alone[slot].logprobs[slot].logprob, abs=1e-4)
    for slot, entries in result.prompt_logprobs.items():
        expected = [entry.logprob for entry in alone[slot].prompt_logprobs[slot]]
        assert [entry.logprob for entry in entries] == pytest.approx(expected, abs=1e-4)


def test_wkv7_follows_the_formula_over_packed_rows():
    lengths, slots, heads = [3, 1, 6, 3], [4, 0, 2, 1], 2
    generator = torch.Generator().manual_seed(0)
    shape = (sum(lengths), heads, 64)
    r, k, v, kk = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4))
    decay, a = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    kk /= kk.norm(dim=-1, keepdim=True)
    pool = torch.randn((5, heads, 64, 64), generator=generator, dtype=torch.float64)
    start = pool.clone()
    y = wkv7(r, decay, k, v, kk, a, pool, PackedRows(slots, lengths, CPU))

    position = 0
    for slot, length in zip(slots, lengths, strict=True):
        state = start[slot].clone()
        for t in range(position, position + length):
            removed = torch.einsum("hij,hj->hi", state, kk[t])
            state = state * decay[t][:, None, :]
            state -= torch.einsum("hi,hj->hij", removed, kk[t] * a[t])
            state += torch.einsum("hi,hj->hij", v[t], k[t])
            torch.testing.assert_close(y[t], torch.einsum("hij,hj->hi", state, r[t]))
        torch.testing.assert_close(pool[slot], state)
        position += length
    assert torch.equal(pool[3], start[3])


@pytest.mark.parametrize(
    ("slots", "lengths", "message"), [([0, 1], [2, 0], "at least one token"), ([3, 3], [1, 1], "slot occurs twice")]
)
def test_rows_that_cannot_be_packed_are_refused(slots, lengths, message):
    with pytest.raises(ValueError, match=message):
        PackedRows(slots, lengths, CPU)


def test_backends_are_created_by_name(tiny_checkpoint):
    shares = []
    backend = create_backend(checkpoint=tiny_checkpoint, device="cpu", progress=shares.append)
    assert (backend.name, backend.device, backend.overlap) == ("torch", "cpu", False)
    assert 1 <= backend.slots <= 80
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert backend.export_state(0)["wkv"].dtype == torch.float32


@pytest.mark.parametrize(
    ("argument", "message"), [("name", "back end 'x' is not known"), ("dtype", "dtype 'x' is not")]
)
def test_unknown_choices_are_refused(tiny_checkpoint, argument, message):
    with pytest.raises(ValueError, match=message):
        create_backend(checkpoint=tiny_checkpoint, device="cpu", **{argument: "x"})
