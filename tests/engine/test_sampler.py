import msgspec
import numpy as np
import pytest
import torch
from scipy import special

from inference.bus.messages import Sampling
from inference.engine.sampler import RankedTokens, Sampler

VOCAB = 1200  # more than are ever listed, so that every path is taken
STEPS = 30
EVERY_METHOD = {
    "greedy": Sampling(temperature=0, presence=1.0, frequency=0.5),
    "unlimited": Sampling(temperature=1.5),
    "top_k": Sampling(top_k=30, temperature=2.0),
    "wide_top_k": Sampling(top_k=1000, temperature=2.0),
    "sorted": Sampling(top_p=0.9, temperature=2.0),
    "min_p": Sampling(min_p=0.02, temperature=2.0),
    "gumbel": Sampling(method="gumbel", temperature=2.0),
    "noise": Sampling(method="noise", noise=3.0),
    "native": Sampling(top_k=50, presence=2.0, frequency=1.0, decay=0.9, temperature=2.0),
    "openai": Sampling(penalty="openai", presence=2.0, frequency=1.0, top_k=40),
    "repetition": Sampling(repetition=1.5, top_p=0.95),
    "edits": Sampling(logit_bias={3: 9.0}, bans=[(4, 3), (20, 3)], min_tokens=12, top_k=20),
}
STOP_IDS = [0, 3]
PROMPT = [1, 2, 3, 3]


@pytest.fixture(scope="module")
def logits():
    """[STEPS, VOCAB]; many are equal, as few distinct values are used."""
    values = np.random.default_rng(5).normal(0, 2, (STEPS, VOCAB))
    return torch.from_numpy(np.round(values * 8) / 8).float()


def run_row(logits, sampling, slots=1, slot=0, generated=()):
    """The draws of one row alone, from position len(generated) on, and its final penalties."""
    sampler = Sampler(slots, VOCAB, "cpu")
    sampler.open_slot(slot, sampling, STOP_IDS, list(generated), PROMPT)
    steps = logits[len(generated) :]
    return [int(sampler.draw(row.unsqueeze(0), [slot])) for row in steps], sampler.penalties[slot].clone()


def seeded(sampling, seed):
    return msgspec.structs.replace(sampling, seed=seed)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_a_seed_repeats_in_any_slot(logits, name):
    sampling = seeded(EVERY_METHOD[name], -7)
    tokens, penalties = run_row(logits, sampling)
    again, penalties_again = run_row(logits, sampling, slots=5, slot=3)
    assert again == tokens
    assert torch.equal(penalties, penalties_again)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_where_every_id_is_barred_id_0_is_drawn(name):
    """The one that the grammar leaves is a stop id, and it is too early for that."""
    sampler = Sampler(1, VOCAB, "cpu")
    sampler.open_slot(0, msgspec.structs.replace(EVERY_METHOD[name], min_tokens=1), [9], [], [])
    scores = torch.full((1, VOCAB), -torch.inf)
    scores[0, 9] = 1.0
    assert sampler.draw(scores, [0]).tolist() == [0]


@pytest.mark.parametrize("name", [name for name in EVERY_METHOD if name != "greedy"])
def test_seeds_differ(logits, name):
    rows = {tuple(run_row(logits, seeded(EVERY_METHOD[name], seed))[0]) for seed in (0, 1, 2**32, -1, 2**63 - 1)}
    assert len(rows) == 5


def test_the_rest_of_the_batch_changes_no_draw(logits):
    rows = [seeded(sampling, seed) for seed in (1, 2) for sampling in EVERY_METHOD.values()]
    slots = np.random.default_rng(6).permutation(len(rows) + 3)[: len(rows)].tolist()
    sampler = Sampler(len(rows) + 3, VOCAB, "cpu")
    for slot, sampling in zip(slots, rows, strict=True):
        sampler.open_slot(slot, sampling, STOP_IDS, [], PROMPT)
    together = torch.stack([sampler.draw(row.expand(len(rows), -1), slots) for row in logits], dim=1).tolist()
    for slot, sampling, tokens in zip(slots, rows, together, strict=True):
        alone, penalties = run_row(logits, sampling)
        assert tokens == alone, sampling
        assert torch.equal(sampler.penalties[slot], penalties), sampling


@pytest.mark.parametrize("name", EVERY_METHOD)
@pytest.mark.parametrize("done", [1, 11, 29])
def test_a_resumed_row_goes_on_as_if_it_had_never_stopped(logits, name, done):
    sampling = seeded(EVERY_METHOD[name], 99)
    tokens, penalties = run_row(logits, sampling)
    rest, penalties_after = run_row(logits, sampling, generated=tokens[:done])
    assert rest == tokens[done:]
    assert torch.equal(penalties_after, penalties)


def peaked(token, height=50.0):
    scores = torch.zeros(1, VOCAB)
    scores[0, token] = height
    return scores


def test_native_penalty_of_an_id_drawn_twice():
    sampler = Sampler(1, VOCAB, "cpu")
    sampler.open_slot(0, Sampling(temperature=0, presence=2.0, frequency=5.0, decay=0.5), [], [], [7])
    for expected in (2.0, 6.0):
        assert sampler.draw(peaked(7), [0]).tolist() == [7]
        assert sampler.penalties[0, 7] == expected
    sampler.draw(peaked(8), [0])
    assert sampler.penalties[0, 7:9].tolist() == [3.0, 2.0]


def test_native_first_time_means_a_penalty_of_exactly_zero():
    sampler = Sampler(1, VOCAB, "cpu")
    sampler.open_slot(0, Sampling(temperature=0, presence=0.0, frequency=5.0), [], [7, 7], [])
    sampler.draw(peaked(7), [0])
    assert sampler.penalties[0].count_nonzero() == 0


def test_openai_penalty_adds_both_the_first_time():
    sampler = Sampler(1, VOCAB, "cpu")
    sampling = Sampling(temperature=0, penalty="openai", presence=1.0, frequency=0.5, decay=0.5)
    sampler.open_slot(0, sampling, [], [8], [7, 8])
    assert sampler.penalties[0, 7:9].tolist() == [0.0, 1.5]
    for expected in ([1.5, 1.5], [2.0, 1.5]):
        sampler.draw(peaked(7), [0])
        assert sampler.penalties[0, 7:9].tolist() == expected


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0, presence=0.5),
        Sampling(temperature=0, presence=0.3, frequency=0.2, penalty="openai"),
        Sampling(temperature=0, repetition=2.0),
    ],
)
def test_a_reopened_slot_remembers_nothing(sampling):
    sampler = Sampler(1, VOCAB, "cpu")
    scores = peaked(9, 1.0)
    scores[0, 10] = 0.8
    for _ in range(2):
        sampler.open_slot(0, sampling, [], [], [])
        assert [int(sampler.draw(scores, [0])) for _ in range(3)] == [9, 10, 9]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(top_p=0),
        Sampling(top_k=1),
        Sampling(method="gumbel", temperature=0),
        Sampling(method="noise", noise=0),
    ],
)
def test_greedy_takes_the_lowest_of_equal_ids(sampling):
    scores = torch.zeros(1, VOCAB)
    scores[0, [900, 41, 40]] = 3.0
    sampler = Sampler(1, VOCAB, "cpu")
    sampler.open_slot(0, sampling, [], [], [])
    assert sampler.draw(scores, [0]).tolist() == [40]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=0, logit_bias={5: 2.0}), [5, 5, 5]),
        (Sampling(temperature=0, presence=2.0), [9, 10, 0]),
        (Sampling(temperature=0, repetition=2.0), [9, 10, 9]),
        (Sampling(temperature=0, bans=[(1, 9), (1, 10)]), [9, 0, 9]),
        (Sampling(temperature=0, min_tokens=2), [10, 10, 9]),
        (Sampling(method="gumbel", temperature=0, logit_bias={5: 2.0}), [5, 5, 5]),
    ],
    ids=["bias", "presence", "repetition", "bans", "min_tokens", "gumbel"],
)
def test_what_changes_logits_applies_to_greedy_rows(sampling, expected):
    sampler = Sampler(1, VOCAB, "cpu")
    sampler.open_slot(0, sampling, [9], [], [])
    scores = peaked(9, 1.0)
    scores[0, 10] = 0.8
    assert [int(sampler.draw(scores, [0])) for _ in range(3)] == expected


def test_stop_ids_beyond_the_vocabulary_are_no_obstacle():
    sampler = Sampler(1, VOCAB, "cpu")
    sampler.open_slot(0, Sampling(temperature=0, min_tokens=1), [9, VOCAB, -1], [], [])
    assert int(sampler.draw(peaked(9), [0])) == 0


@pytest.mark.parametrize(
    ("name", "sampling", "generated", "prompt"),
    [
        ("logit_bias", Sampling(logit_bias={VOCAB: 1.0}), [], []),
        ("bans", Sampling(bans=[(0, -1)]), [], []),
        ("generated", Sampling(), [VOCAB], []),
        ("prompt", Sampling(), [], [0, -2]),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused_by_name(name, sampling, generated, prompt):
    with pytest.raises(ValueError, match=f"^{name}: token ids must be in 0 .. 1199"):
        Sampler(1, VOCAB, "cpu").open_slot(0, sampling, [], generated, prompt)


def test_logits_stay_as_they_are(logits):
    sampler = Sampler(len(EVERY_METHOD), VOCAB, "cpu")
    for slot, sampling in enumerate(EVERY_METHOD.values()):
        sampler.open_slot(slot, sampling, STOP_IDS, [1], PROMPT)
    batch = logits[: len(EVERY_METHOD)].clone()
    for slot in range(len(EVERY_METHOD)):
        sampler.draw(batch[slot : slot + 1], [slot])
    sampler.draw(batch, list(range(len(EVERY_METHOD))))
    assert torch.equal(batch, logits[: len(EVERY_METHOD)])


def test_an_empty_batch_draws_nothing():
    assert Sampler(1, VOCAB, "cpu").draw(torch.empty(0, VOCAB), []).tolist() == []


def test_logprobs_are_the_log_softmax_of_the_raw_logits():
    scores = np.random.default_rng(8).normal(0, 3, (4, VOCAB)).astype(np.float32)
    scores[1, 5] = -np.inf
    tokens = [0, 5, 17, int(scores[3].argmax())]
    expected = special.log_softmax(scores.astype(float), axis=1)
    result = RankedTokens(torch.from_numpy(scores), torch.tensor(tokens), top=3).read()
    for row, token, logprobs in zip(expected, tokens, result, strict=True):
        best = np.argsort(-row)[:3]
        assert logprobs.logprob == pytest.approx(row[token], abs=1e-5)
        assert [token_id for token_id, _ in logprobs.top] == best.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(row[best].tolist(), abs=1e-5)
    assert result[1].logprob == -np.inf
    assert result[3].top[0] == (tokens[3], result[3].logprob)  # the very same float


def test_logprobs_without_top_and_with_more_than_there_are():
    scores, tokens = torch.zeros(2, 4), torch.tensor([1, 2])
    assert [row.top for row in RankedTokens(scores, tokens, top=0).read()] == [[], []]
    assert [len(row.top) for row in RankedTokens(scores, tokens, top=9).read()] == [4, 4]


def test_a_top_p_too_small_for_a_float32_is_greedy():
    sampler = Sampler(1, 8, "cpu")
    sampler.open_slot(0, Sampling(top_p=1e-46, seed=3), [], [], [])
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0]])
    assert [sampler.draw(logits, [0]).item() for _ in range(5)] == [1] * 5
