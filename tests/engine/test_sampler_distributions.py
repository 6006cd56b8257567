"""Draws against the exact distribution, worked out in float64 from the definitions."""

import numpy as np
import pytest
import torch
from scipy import stats

from inference.bus.messages import Sampling
from inference.engine.sampler import Sampler

DRAWS = 20_000
SLOTS = 200
VOCAB = 50
CLIP = 6.2e-5
LOGITS = np.random.default_rng(1).normal(0, 2, VOCAB).astype(np.float32)
TIED_LOGITS = np.round(LOGITS / 2) * 2


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def joint_limits(p, top_k, top_p):
    """Top-k and top-p on the same p: go down through the distinct probabilities until a limit is met."""
    weights = np.zeros_like(p)
    for level in np.unique(p[p > 0])[::-1]:
        above, tied = p > level, p == level
        share = min((top_p - p[above].sum()) / (level * tied.sum()), (top_k - above.sum()) / tied.sum(), 1)
        if share <= 0:
            break
        weights[tied] = level * share
    return weights / weights.sum()


def draw_many(logits, sampling, draws=DRAWS, slots=SLOTS):
    """Draws of rows without memory: `slots` seeds at `draws / slots` positions each."""
    sampler = Sampler(slots, len(logits), "cpu")
    for slot in range(slots):
        sampler.open_slot(slot, with_seed(sampling, slot), [], [], [])
    batch = torch.from_numpy(np.asarray(logits)).expand(slots, -1)
    return np.concatenate([sampler.draw(batch, range(slots)).numpy() for _ in range(draws // slots)])


def draw_behind(logits, sampling, generated, prompt=()):
    """One draw behind `generated` from each of DRAWS seeds."""
    sampler = Sampler(DRAWS, len(logits), "cpu")
    for slot in range(DRAWS):
        sampler.open_slot(slot, with_seed(sampling, slot), [], generated, prompt)
    return sampler.draw(torch.from_numpy(logits).expand(DRAWS, -1), range(DRAWS)).numpy()


def with_seed(sampling, seed):
    return Sampling(**{name: getattr(sampling, name) for name in sampling.__struct_fields__} | {"seed": seed})


def assert_drawn_from(tokens, probabilities):
    observed = np.bincount(tokens, minlength=len(probabilities)).astype(float)
    assert observed[probabilities == 0].sum() == 0
    expected = probabilities * len(tokens)
    order = np.argsort(expected)
    order = order[expected[order] > 0]
    small = max(int((expected[order] < 5).sum()), int(np.searchsorted(np.cumsum(expected[order]), 5)) + 1)
    pool = order[:small]
    observed = np.append(observed[order[small:]], observed[pool].sum())
    expected = np.append(expected[order[small:]], expected[pool].sum())
    assert len(expected) >= 3, "too few bins to tell anything"
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_alone(temperature, dtype):
    tokens = draw_many(LOGITS.astype(dtype), Sampling(temperature=temperature))
    assert_drawn_from(tokens, softmax(LOGITS.astype(float) / temperature))


@pytest.mark.parametrize("logits", [LOGITS, TIED_LOGITS], ids=["distinct", "tied"])
@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(7, 1.0), (0, 0.6), (7, 0.6), (4, 0.9), (0, 0.05), (2, 0.999), (1000, 0.95), (-1, 0.8), (12, -1.0), (12, 1.5)],
)
def test_joint_top_k_and_top_p(logits, top_k, top_p):
    tokens = draw_many(logits, Sampling(temperature=2.0, top_k=top_k, top_p=top_p))
    limit_k = top_k if top_k > 0 else VOCAB
    expected = joint_limits(softmax(logits.astype(float) / 2), limit_k, top_p if 0 <= top_p <= 1 else 1.0)
    if (expected > 0).sum() < 3:  # too few for a chi-squared test
        share = (tokens == expected.argmax()).mean()
        assert set(tokens) == set(np.flatnonzero(expected))
        assert stats.binomtest(int(share * DRAWS), DRAWS, expected.max()).pvalue > 1e-4
    else:
        assert_drawn_from(tokens, expected)


@pytest.mark.parametrize(("top_k", "top_p"), [(1030, 1.0), (0, 0.7), (1030, 0.9)])
def test_limits_that_need_all_tokens_sorted(top_k, top_p):
    logits = np.round(np.random.default_rng(2).normal(0, 1, 1200) * 4).astype(np.float32) / 4
    tokens = draw_many(logits, Sampling(top_k=top_k, top_p=top_p))
    assert_drawn_from(tokens, joint_limits(softmax(logits.astype(float)), top_k or 1200, top_p))


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (6, 0.8)])
def test_min_p(top_k, top_p):
    p = softmax(LOGITS.astype(float) / 1.5)
    kept = np.where(p >= 0.1 * p.max(), p, 0)
    assert 6 < (kept > 0).sum() < VOCAB
    tokens = draw_many(LOGITS, Sampling(temperature=1.5, min_p=0.1, top_k=top_k, top_p=top_p))
    kept /= kept.sum()
    assert_drawn_from(tokens, joint_limits(kept, top_k, top_p) if top_k else kept)


def test_logit_bias():
    bias = {3: 4.0, 17: -100.0, 20: 1.5}
    biased = LOGITS.astype(float)
    biased[list(bias)] += list(bias.values())
    assert_drawn_from(draw_many(LOGITS, Sampling(logit_bias=bias)), softmax(biased))


def test_bans():
    banned = int(LOGITS.argmax())
    barred = np.where(np.arange(VOCAB) == banned, -np.inf, LOGITS.astype(float))
    sampling = Sampling(bans=[(2, banned), (0, 5)])
    assert_drawn_from(draw_behind(LOGITS, sampling, generated=[1, 1]), softmax(barred))


def test_repetition_penalty_counts_prompt_and_output_once():
    high, low = np.argsort(LOGITS)[[-1, 5]]
    assert LOGITS[high] > 0 > LOGITS[low]
    expected = LOGITS.astype(float)
    expected[high] /= 1.7
    expected[low] *= 1.7
    tokens = draw_behind(LOGITS, Sampling(repetition=1.7), generated=[low, low], prompt=[high, high, low])
    assert_drawn_from(tokens, softmax(expected))


def test_native_penalties_decay_and_are_taken_before_temperature():
    history = [4, 9, 4, 4, 30]
    penalties = np.zeros(VOCAB)
    for token in history:
        first = penalties[token] == 0
        penalties *= 0.9
        penalties[token] += 1.5 if first else 0.75
    sampling = Sampling(temperature=0.7, top_p=0.9, presence=1.5, frequency=0.75, decay=0.9)
    expected = joint_limits(softmax((LOGITS - penalties) / 0.7), VOCAB, 0.9)
    assert_drawn_from(draw_behind(LOGITS, sampling, history, prompt=[1, 2, 3]), expected)


def test_openai_penalties_are_the_literal_formula():
    history = [4, 9, 4, 4, 30]
    count = np.bincount(history, minlength=VOCAB)
    sampling = Sampling(penalty="openai", presence=-0.8, frequency=0.6, decay=0.5)
    expected = softmax(LOGITS - 0.6 * count + 0.8 * (count > 0))
    assert_drawn_from(draw_behind(LOGITS, sampling, history, prompt=[1, 2, 3]), expected)


def test_gumbel_is_softmax_where_the_clip_does_not_matter():
    # The clip shifts no probability by more than that of one clipped entry, 50 * 6.2e-5.
    tokens = draw_many(LOGITS, Sampling(method="gumbel", temperature=1.3, top_k=3, top_p=0.1))
    assert_drawn_from(tokens, softmax(LOGITS.astype(float) / 1.3))


def test_gumbel_noise_is_clipped():
    """Of 65,536 equal logits about four have clipped noise; they tie, and the lowest id wins."""
    vocab, draws = 65536, 1000
    tokens = draw_many(np.zeros(vocab, np.float32), Sampling(method="gumbel"), draws=draws, slots=20)
    clipped = -np.expm1(-CLIP)
    unclipped_so_far = (1 - clipped) ** np.arange(vocab)
    expected = clipped * unclipped_so_far + (1 - clipped) ** vocab / vocab
    bins = 32
    assert_drawn_from(tokens // (vocab // bins), expected.reshape(bins, -1).sum(axis=1))


def test_noise_adds_a_uniform_to_each_scaled_logit():
    noise, scaled = 3.0, LOGITS.astype(float) / 1.2
    expected = np.zeros(VOCAB)
    u = (np.arange(100_000) + 0.5) / 100_000 * noise
    for token in range(VOCAB):
        others = np.delete(scaled, token)
        below = np.clip((scaled[token] + u[:, None] - others) / noise, 0, 1)  # P(other entry is lower)
        expected[token] = below.prod(axis=1).mean()
    expected[scaled < scaled.max() - noise] = 0
    tokens = draw_many(LOGITS, Sampling(method="noise", noise=noise, temperature=1.2))
    assert_drawn_from(tokens, expected / expected.sum())


@pytest.mark.parametrize(("top_k", "top_p", "draws"), [(50, 0.6, 3000), (0, 0.3, 400)])
def test_full_vocabulary(top_k, top_p, draws):
    logits = np.random.default_rng(3).normal(0, 3, 65536).astype(np.float32)
    logits[:3] = np.sort(logits)[-40]  # four ids tie among the best
    tokens = draw_many(logits, Sampling(top_k=top_k, top_p=top_p), draws=draws, slots=20)
    assert_drawn_from(tokens, joint_limits(softmax(logits.astype(float)), top_k or 65536, top_p))
