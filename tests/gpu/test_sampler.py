"""The sampler kernel against the reference sampler and against exact distributions."""

import numpy as np
import pytest
import torch

from inference.bus.messages import Sampling
from inference.engine.cuda_sampler import MAX_EDITS, MAX_STOPS, CudaSampler
from inference.engine.sampler import Sampler
from tests.engine.test_sampler_distributions import assert_drawn_from, joint_limits, softmax, with_seed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DEVICE = "cuda"
VOCAB = 1200
STEPS = 30
FULL = 65536
DRAWS = 20_000
SLOTS = 1000
STOP_IDS = [0, 3]
PROMPT = [1, 2, 3, 3]
SMALL_LOGITS = np.random.default_rng(1).normal(0, 2, 48).astype(np.float32)
TIED_LOGITS = np.round(SMALL_LOGITS / 2) * 2
EXACT = {  # methods without a running sum: the kernel draws what the reference draws
    "greedy": Sampling(temperature=0, presence=1.0, frequency=0.5, decay=0.9),
    "gumbel": Sampling(method="gumbel", temperature=2.0, presence=1.1, frequency=0.7, penalty="openai"),
    "noise": Sampling(method="noise", noise=3.0, temperature=0.7, presence=0.5, frequency=0.2, decay=0.95),
    "repetition": Sampling(method="noise", noise=2.0, repetition=1.5, logit_bias={5: 2.0, 7: -1.0}, presence=0.3),
    "edits": Sampling(temperature=0, logit_bias={3: 9.0, 0: 8.0}, bans=[(14, 3), (20, 3), (20, 0)], min_tokens=12),
}
FILTER = {
    "unlimited": Sampling(temperature=1.5),
    "top_k": Sampling(top_k=30, temperature=2.0),
    "top_p": Sampling(top_p=0.9, temperature=2.0),
    "min_p": Sampling(min_p=0.02, temperature=2.0),
    "native": Sampling(top_k=50, top_p=0.8, presence=2.0, frequency=1.0, decay=0.9, temperature=2.0),
    "openai": Sampling(penalty="openai", presence=2.0, frequency=1.0, top_k=40),
    "rest": Sampling(repetition=1.5, top_p=0.95, min_tokens=12, logit_bias={3: 9.0}),
}


@pytest.fixture(scope="module")
def logits():
    """[STEPS, VOCAB] on the host; many are equal, as few distinct values are used."""
    values = np.random.default_rng(5).normal(0, 2, (STEPS, VOCAB))
    return torch.from_numpy(np.round(values * 8) / 8).float()


def device_slots(slots):
    return torch.tensor(list(slots), dtype=torch.int32, device=DEVICE)


def run_row(logits, sampling, slots=1, slot=0, generated=()):
    """The draws of one row alone, from position len(generated) on, and its final penalties."""
    sampler = CudaSampler(slots, logits.shape[1], DEVICE)
    sampler.open_slot(slot, sampling, [], list(generated), PROMPT)
    steps = logits[len(generated) :].to(DEVICE)
    tokens = [int(sampler.draw(row.unsqueeze(0), device_slots([slot]))) for row in steps]
    return tokens, sampler.penalties[slot].clone()


def draw_many(logits, sampling, draws=DRAWS, slots=SLOTS):
    """Draws of rows without memory: `slots` seeds at `draws / slots` positions each."""
    sampler = CudaSampler(slots, len(logits), DEVICE)
    for slot in range(slots):
        sampler.open_slot(slot, with_seed(sampling, slot), [], [], [])
    batch = torch.from_numpy(logits).to(DEVICE).expand(slots, -1).contiguous()
    rows = device_slots(range(slots))
    return np.concatenate([sampler.draw(batch, rows).cpu().numpy() for _ in range(draws // slots)])


@pytest.mark.parametrize("name", EXACT)
def test_draws_and_penalties_are_those_of_the_reference(logits, name):
    reference, sampler = Sampler(5, VOCAB, "cpu"), CudaSampler(5, VOCAB, DEVICE)
    slots = [4, 0, 2]
    for slot in slots:
        for either in (reference, sampler):
            either.open_slot(slot, with_seed(EXACT[name], 2**63 - slot), [9, VOCAB, -1], [7, 8, 7], PROMPT)
    for row in logits:
        batch = torch.stack([row, row.flip(0), row.roll(7)])
        expected = reference.draw(batch, slots)
        assert sampler.draw(batch.to(DEVICE), device_slots(slots)).tolist() == expected.tolist()
        assert sampler.last_token[slots].tolist() == expected.tolist()
        if 9 in expected:
            break  # a stop id: the rows part ways
    assert torch.equal(sampler.penalties[slots].cpu(), reference.penalties[slots])
    assert sampler.position[slots].tolist() == reference.position[slots].tolist()


@pytest.mark.parametrize("name", FILTER)
def test_a_seed_repeats_in_any_slot_and_seeds_differ(logits, name):
    tokens, penalties = run_row(logits, with_seed(FILTER[name], -7))
    again, penalties_again = run_row(logits, with_seed(FILTER[name], -7), slots=5, slot=3)
    assert again == tokens
    assert torch.equal(penalties_again, penalties)
    assert run_row(logits, with_seed(FILTER[name], 2**32 - 7))[0] != tokens


def test_the_rest_of_the_batch_changes_no_draw(logits):
    rows = [with_seed(sampling, seed) for seed in (1, 2) for sampling in (EXACT | FILTER).values()]
    slots = np.random.default_rng(6).permutation(len(rows) + 3)[: len(rows)].tolist()
    sampler = CudaSampler(len(rows) + 3, VOCAB, DEVICE)
    for slot, sampling in zip(slots, rows, strict=True):
        sampler.open_slot(slot, sampling, [], [], PROMPT)
    padded = device_slots([*slots, sampler.dummy, sampler.dummy])
    steps = [row.expand(len(padded), -1).contiguous() for row in logits.to(DEVICE)]
    together = torch.stack([sampler.draw(batch, padded) for batch in steps], dim=1).tolist()
    assert together[-2:] == [[-1] * STEPS] * 2
    for slot, sampling, tokens in zip(slots, rows, together, strict=False):
        alone, penalties = run_row(logits, sampling)
        assert tokens == alone, sampling
        assert torch.equal(sampler.penalties[slot], penalties), sampling


@pytest.mark.parametrize("name", [*EXACT, *FILTER])
def test_a_resumed_row_goes_on_as_if_it_had_never_stopped(logits, name):
    sampling = with_seed((EXACT | FILTER)[name], 99)
    tokens, penalties = run_row(logits, sampling)
    rest, penalties_after = run_row(logits, sampling, generated=tokens[:11])
    assert rest == tokens[11:]
    assert torch.equal(penalties_after, penalties)


def test_a_reopened_slot_remembers_nothing(logits):
    sampler, rows = CudaSampler(1, VOCAB, DEVICE), logits.to(DEVICE).unsqueeze(1)
    for sampling in (*EXACT.values(), *FILTER.values()):
        sampler.open_slot(0, sampling, STOP_IDS, [5, 6], PROMPT)
        sampler.draw(rows[0], device_slots([0]))
    sampler.open_slot(0, FILTER["native"], [], [], PROMPT)
    tokens = [int(sampler.draw(row, device_slots([0]))) for row in rows]
    assert tokens == run_row(logits, FILTER["native"])[0]


def peaked(token, vocab=VOCAB, height=50.0):
    scores = torch.zeros(1, vocab, device=DEVICE)
    scores[0, token] = height
    return scores


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=0, presence=2.0, frequency=5.0, decay=0.5), [2.0, 6.0]),
        (Sampling(temperature=0, presence=2.0, frequency=5.0, decay=0.0), [2.0, 5.0]),
        (Sampling(temperature=0, presence=0.0, frequency=5.0), [0.0, 0.0]),
        (Sampling(temperature=0, penalty="openai", presence=0.25, frequency=0.5, decay=0.5), [0.75, 1.25]),
        (Sampling(temperature=0, penalty="openai", presence=-0.5, frequency=0.5), [0.0, 0.5]),
    ],
)
def test_penalties_of_an_id_drawn_twice(sampling, expected):
    sampler = CudaSampler(1, VOCAB, DEVICE)
    sampler.open_slot(0, sampling, [], [], [7])
    for value in expected:
        assert sampler.draw(peaked(7), device_slots([0])).tolist() == [7]
        assert sampler.penalties[0, 7] == value
    assert sampler.penalties[0].count_nonzero() == (1 if expected[-1] else 0)


@pytest.mark.parametrize("logits", [SMALL_LOGITS, TIED_LOGITS], ids=["distinct", "tied"])
@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(0, 1.0), (7, 1.0), (0, 0.6), (7, 0.6), (5, 0.9), (3, 0.999), (1000, 0.95), (-1, 0.8), (12, -1.0)],
)
def test_joint_top_k_and_top_p(logits, top_k, top_p):
    tokens = draw_many(logits, Sampling(temperature=2.0, top_k=top_k, top_p=top_p))
    expected = joint_limits(softmax(logits.astype(float) / 2), top_k if top_k > 0 else 48, top_p if top_p >= 0 else 1.0)
    assert_drawn_from(tokens, expected)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (6, 0.8)])
def test_min_p(top_k, top_p):
    p = softmax(SMALL_LOGITS.astype(float) / 1.5)
    kept = np.where(p >= 0.1 * p.max(), p, 0) / p[p >= 0.1 * p.max()].sum()
    tokens = draw_many(SMALL_LOGITS, Sampling(temperature=1.5, min_p=0.1, top_k=top_k, top_p=top_p))
    assert_drawn_from(tokens, joint_limits(kept, top_k or 48, top_p))


@pytest.mark.parametrize(("top_k", "top_p"), [(50, 0.6), (0, 0.3), (1024, 1.0), (0, 0.9), (40_000, 0.999)])
def test_full_vocabulary(top_k, top_p):
    logits = np.random.default_rng(3).normal(0, 3, FULL).astype(np.float32)
    logits[:3] = np.sort(logits)[-40]  # four ids tie among the best
    logits[100:200] = -np.inf
    tokens = draw_many(logits, Sampling(top_k=top_k, top_p=top_p))
    assert_drawn_from(tokens, joint_limits(softmax(logits.astype(float)), top_k or FULL, top_p))


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(top_k=1024), Sampling(top_p=0.0001)], ids=["unlimited", "top_k", "top_p"]
)
def test_equal_logits_are_treated_alike(sampling):
    logits = np.full(FULL, -3.0, dtype=np.float32)
    logits[FULL // 2 :] = -np.inf
    observed = draw_many(logits, sampling)
    assert observed.max() < FULL // 2
    assert_drawn_from(observed // 1024, np.full(32, 1 / 32))


def test_the_smallest_top_p_leaves_the_best_id_alone():
    logits = np.random.default_rng(4).normal(0, 0.01, FULL).astype(np.float32)
    assert set(draw_many(logits, Sampling(top_p=1e-5))) == {int(logits.argmax())}


@pytest.mark.parametrize("name", EXACT)
def test_the_full_vocabulary_in_an_odd_batch_against_the_reference(name):
    rng = np.random.default_rng(8)
    batch = torch.from_numpy(rng.normal(0, 3, (7, FULL)).astype(np.float32))
    batch[0] = 0.0  # all tie
    reference, sampler = Sampler(7, FULL, "cpu"), CudaSampler(7, FULL, DEVICE)
    for slot in range(7):
        generated = rng.integers(0, FULL, 50).tolist()
        for either in (reference, sampler):
            either.open_slot(slot, with_seed(EXACT[name], slot), [], generated, [65535, 0])
    sampler.last_token.fill_(-7)
    for _ in range(3):
        expected = reference.draw(batch, range(7))
        assert sampler.draw(batch.to(DEVICE), device_slots(range(7))).tolist() == expected.tolist()
    assert sampler.last_token.tolist() == [*expected.tolist(), -7]
    assert torch.equal(sampler.penalties[:7].cpu(), reference.penalties)


def test_a_stop_id_ends_the_row_and_freezes_its_slot():
    sampler = CudaSampler(3, VOCAB, DEVICE)
    sampling = Sampling(temperature=0, presence=1.0, decay=0.5, repetition=1.1)
    for slot in range(3):
        sampler.open_slot(slot, sampling, [5, 9, VOCAB + 1], [4], [])
    slots = device_slots([0, 2])
    batch = torch.cat([peaked(9), peaked(8)])
    assert sampler.draw(batch, slots).tolist() == [9, 8]
    assert sampler.done.tolist() == [1, 0, 0, 1]
    assert sampler.moving(device_slots([2, 0, 1])).tolist() == [2, sampler.dummy, 1]

    kept = [buffer[0].clone() for buffer in (sampler.penalties, sampler.seen, sampler.position, sampler.last_token)]
    assert sampler.draw(batch, slots).tolist() == [-1, 8]
    after = [buffer[0] for buffer in (sampler.penalties, sampler.seen, sampler.position, sampler.last_token)]
    assert all(torch.equal(old, new) for old, new in zip(kept, after, strict=True))
    assert sampler.position.tolist() == [2, 1, 3, 0]

    sampler.open_slot(0, sampling, [5], [], [])
    assert sampler.draw(batch, slots).tolist() == [9, 8]
    assert sampler.done.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0), Sampling(), Sampling(top_p=0.5, top_k=9)],
    ids=["greedy", "unlimited", "limited"],
)
def test_broken_logits_still_give_an_id_of_the_vocabulary(sampling):
    batch = torch.zeros(5, VOCAB, device=DEVICE)
    batch[0] = torch.nan
    batch[1] = -torch.inf
    batch[2, 70] = torch.inf
    batch[3, 70], batch[3, 71:] = 60.0, torch.nan
    batch[4, 70] = 60.0
    sampler = CudaSampler(5, VOCAB, DEVICE)
    for slot in range(5):
        sampler.open_slot(slot, sampling, [], [], [])
    assert sampler.draw(batch, device_slots(range(5))).tolist() == [0, 0, 70, 70, 70]


def test_a_recorded_graph_goes_on_drawing(logits):
    sampling = with_seed(FILTER["native"], 3)
    expected, _ = run_row(logits[:1].expand(STEPS, -1), sampling)
    sampler = CudaSampler(1, VOCAB, DEVICE)
    batch, slots = logits[:1].to(DEVICE), device_slots([0])
    sampler.open_slot(0, sampling, [], [], PROMPT)
    sampler.draw(batch, slots)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sampler.draw(batch, slots)
    sampler.open_slot(0, sampling, [], [], PROMPT)
    sampler.flush()
    drawn = []
    for _ in range(STEPS):
        graph.replay()
        drawn.append(int(tokens))
    assert drawn == expected


def test_logits_stay_as_they_are(logits):
    sampler, batch = CudaSampler(STEPS, VOCAB, DEVICE), logits.to(DEVICE)
    for slot in range(STEPS):
        sampler.open_slot(slot, EXACT["repetition"], [], [], PROMPT)
    sampler.draw(batch, device_slots(range(STEPS)))
    assert torch.equal(batch.cpu(), logits)


def test_as_many_edits_and_stop_ids_as_there_is_room_for():
    sampler = CudaSampler(1, FULL, DEVICE)
    bias = {token: 1.0 + token / FULL for token in range(0, FULL, FULL // MAX_EDITS)}
    sampler.open_slot(0, Sampling(temperature=0, logit_bias=bias), [*range(1, MAX_STOPS), FULL - 1], [], [])
    assert sampler.draw(torch.zeros(1, FULL, device=DEVICE), device_slots([0])).tolist() == [max(bias)]
    assert sampler.draw(peaked(FULL - 1, FULL), device_slots([0])).tolist() == [FULL - 1]
    assert sampler.done.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("message", "sampling", "stop_ids", "generated", "prompt"),
    [
        ("logit_bias: token ids must be in 0 .. 1199", Sampling(logit_bias={VOCAB: 1.0}), [], [], []),
        ("bans: token ids must be in 0 .. 1199", Sampling(bans=[(0, -1)]), [], [], []),
        ("generated: token ids must be in 0 .. 1199", Sampling(), [], [VOCAB], []),
        ("prompt: token ids must be in 0 .. 1199", Sampling(), [], [], [0, -2]),
        ("stop_ids: at most 64, got 65", Sampling(), list(range(65)), [], []),
        ("logit_bias, .*: at most 1024 .* got 1025", Sampling(logit_bias=dict.fromkeys(range(1025), 0.5)), [], [], []),
    ],
)
def test_what_a_slot_cannot_hold_is_refused_by_name(message, sampling, stop_ids, generated, prompt):
    with pytest.raises(ValueError, match=f"^{message}"):
        CudaSampler(1, VOCAB, DEVICE).open_slot(0, sampling, stop_ids, generated, prompt)


@pytest.mark.parametrize("vocab", [50, 0, FULL + 4])
def test_a_vocabulary_the_kernel_cannot_take_is_refused(vocab):
    with pytest.raises(ValueError, match=r"^vocab: .* multiples of 4 up to 65536"):
        CudaSampler(1, vocab, DEVICE)


def test_logits_of_another_type_are_refused():
    sampler = CudaSampler(1, VOCAB, DEVICE)
    with pytest.raises(ValueError, match=r"^logits: expected contiguous float32 \[1, 1200\], got torch.float16"):
        sampler.draw(peaked(1).half(), device_slots([0]))


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=2.0, top_k=40, presence=1.0)])
def test_a_masked_slot_draws_only_what_its_mask_allows(sampling):
    """Slot 1 may draw every seventh id; slot 0 beside it is not masked, and slot 1 is free again when reopened."""
    sampler = CudaSampler(2, VOCAB, DEVICE)
    allowed = np.arange(VOCAB) % 7 == 3
    mask = np.packbits(np.pad(allowed, (0, -VOCAB % 32)), bitorder="little").view(np.uint32)
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (2, VOCAB))).float().to(DEVICE)
    logits[1, 4] = 100.0  # the best one is barred
    for slot in range(2):
        sampler.open_slot(slot, sampling, [], [], [])
    sampler.set_masks({1: mask})
    drawn = torch.stack([sampler.draw(logits, device_slots([0, 1])) for _ in range(50)]).cpu().numpy()
    assert np.all(drawn[:, 1] % 7 == 3)
    assert np.any(drawn[:, 0] % 7 != 3)
    sampler.open_slot(1, Sampling(temperature=0), [], [], [])
    assert sampler.draw(logits, device_slots([0, 1]))[1].item() == 4
