"""How the next token is drawn: the reference for every sampler kernel.

From a row's logits l (width V), in this order; each step that a row does not ask for changes nothing:

1. Repetition penalty r, over the ids of prompt and output: l / r where l > 0, else l * r
   (Keskar et al., "CTRL", 2019, section 4.1; the sign rule is that of Hugging Face and vLLM).
2. Logit bias: l + b.
3. Penalties: l - pen. Each drawn id then changes all of the row's pen: pen = decay * pen, and the id's
   own grows by `presence` if it was exactly 0 before, else by `frequency` (RWKV's Rapid-Sampling).
   With `penalty="openai"` it grows by `presence + frequency` the first time, `frequency` later, and
   nothing decays: pen = frequency * count + presence * (count > 0) (OpenAI's API reference).
4. Bans: l = -inf for the ids barred at this position, and for stop ids before `min_tokens`.
5. Temperature: z = l / T.
6. Method "filter": min-p keeps z_i >= max(z) + ln(min_p), that is p_i >= min_p * max(p); p = softmax(z)
   over what is left; top-k and top-p act jointly on p: with t the smallest probability for which
   both limits still hold, p > t keep their weight, and the n_eq ids with p == t share
   min(top_p - S_gt, t * (top_k - n_gt), t * n_eq), where n_gt and S_gt are number and mass of p > t
   (Rapid-Sampling). So a boundary id may be kept in part, the mass kept is top_p, and ties are
   treated alike. The draw is in proportion to the weights.
   Method "gumbel": argmax(z_i - ln(max(E_i, 6.2e-5))), E_i ~ Exp(1) (a draw from softmax(z), but for the clip).
   Method "noise": argmax(z_i + U_i), U_i ~ Uniform(0, noise).

Greedy rows (see `Sampling`) stop after step 4 and take the largest l, of equal ones the lowest id.
Arithmetic is in the logits' type; sums over probabilities are in float64.

A row's draws depend on its seed and position (its number of earlier draws) alone. `draw` never waits
for the device: what it must know to choose a path, it knows from host copies of the parameters.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.bus.messages import Sampling, TokenLogprobs
from inference.engine.rng import entry_uniforms, row_uniform
from inference.engine.row_params import (
    DrawPath,
    Edits,
    Needs,
    RowParams,
    choose_path,
    replay_penalties,
    row_needs,
    row_params,
)

_CLIP = 6.2e-5  # smallest exponential variate of the "gumbel" method
_IN_PROMPT, _IN_OUTPUT = 1, 2  # bits of `Sampler.seen`


class Sampler:
    """Sampling parameters, penalties and position of every slot, and the draws.

    On the device: `penalties` float32 [slots, V]; `seen` uint8 [slots, V], bit 0 in the prompt, bit 1 in
    the output (kept only for rows that need it); `params` float32 [slots, len(RowParams)]; `seed` and
    `position` int64 [slots].
    """

    def __init__(self, slots: int, vocab: int, device: torch.device | str) -> None:
        self.vocab = vocab
        self.device = torch.device(device)
        self.penalties = torch.zeros(slots, vocab, device=device)
        self.seen = torch.zeros(slots, vocab, dtype=torch.uint8, device=device)
        self.params = torch.zeros(slots, len(RowParams._fields), device=device)
        self.seed = torch.zeros(slots, dtype=torch.int64, device=device)
        self.position = torch.zeros(slots, dtype=torch.int64, device=device)
        self._edits: list[Edits | None] = [None] * slots
        self._path = np.zeros(slots, dtype=np.int64)
        self._needs = np.zeros(slots, dtype=np.int64)
        self._top_k = np.zeros(slots, dtype=np.int64)
        self._host_position = np.zeros(slots, dtype=np.int64)

    def open_slot(
        self, slot: int, sampling: Sampling, stop_ids: Sequence[int], generated: Sequence[int], prompt: Sequence[int]
    ) -> None:
        """Make `slot` a row whose next draw comes behind `generated`, as if it had drawn those itself.

        `prompt` counts for the repetition penalty alone. Raises ValueError if an id is not in 0 .. V - 1.
        """
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("bans", [token for _, token in sampling.bans])
        self._check_ids("generated", generated)
        self._check_ids("prompt", prompt)
        params, needs = row_params(sampling, self.vocab), row_needs(sampling)

        self._edits[slot] = Edits(sampling, stop_ids, self.vocab) if needs & Needs.EDITS else None
        self._path[slot] = choose_path(sampling, params, self.vocab)
        self._needs[slot] = needs
        self._top_k[slot] = params.top_k
        self._host_position[slot] = len(generated)
        self.params[slot] = self._upload(np.array(params, dtype=np.float32))
        self.seed[slot] = (sampling.seed + 2**63) % 2**64 - 2**63
        self.position[slot] = len(generated)
        self.penalties[slot].zero_()
        self.seen[slot].zero_()
        if needs & Needs.SEEN:
            self._mark_seen(slot, prompt, _IN_PROMPT)
            self._mark_seen(slot, generated, _IN_OUTPUT)
        if needs & Needs.PENALTIES and generated:
            tokens, values = replay_penalties(params, generated)
            self.penalties[slot, self._upload(tokens)] = self._upload(values)

    def draw(self, logits: Tensor, slots: Sequence[int]) -> Tensor:
        """Draw a token for each row and account for it: `logits` float32 or float64 [N, V] -> int64 [N].

        Row i belongs to `slots[i]`; no slot may be named twice. `logits` are left as they are.
        """
        host_slots = np.asarray(slots, dtype=np.int64)
        needs = int(np.bitwise_or.reduce(self._needs[host_slots], initial=0))
        index = self._upload(host_slots)
        params = RowParams(*self.params[index].unsqueeze(2).unbind(1))
        penalties = self.penalties[index] if needs & Needs.PENALTIES else None

        scores = logits
        if needs & Needs.REPETITION:
            scaled = torch.where(scores > 0, scores / params.repetition, scores * params.repetition)
            scores = torch.where(self.seen[index] > 0, scaled, scores)
        if needs & Needs.EDITS:
            scores = self._add_edits(scores, host_slots)
        if penalties is not None:
            scores = scores - penalties
        tokens = self._choose(scores, host_slots, index, params)

        if penalties is not None:
            self._update_penalties(penalties, tokens, index, params, needs)
        if needs & Needs.SEEN:
            self.seen[index, tokens] = self.seen[index, tokens] | _IN_OUTPUT
        self.position[index] += 1
        self._host_position[host_slots] += 1
        return tokens

    def _add_edits(self, scores: Tensor, host_slots: np.ndarray) -> Tensor:
        """Bias and bans. A ban may come before the penalties: -inf less a penalty is still -inf."""
        rows, tokens, values = [], [], []
        for row, slot in enumerate(host_slots):
            edits = self._edits[slot]
            for token, value in edits.at(int(self._host_position[slot])) if edits else ():
                rows.append(row)
                tokens.append(token)
                values.append(value)
        if not rows:
            return scores
        where = self._upload(np.array(rows)), self._upload(np.array(tokens))
        return scores.index_put(where, self._upload(np.array(values)).to(scores.dtype), accumulate=True)

    def _choose(self, scores: Tensor, host_slots: np.ndarray, index: Tensor, params: RowParams[Tensor]) -> Tensor:
        paths = self._path[host_slots]
        distinct = np.unique(paths)
        if len(distinct) == 1:
            return self._choose_by(DrawPath(distinct[0]), scores, host_slots, index, params)
        tokens = torch.empty(len(host_slots), dtype=torch.int64, device=self.device)
        for path in distinct:
            host_rows = np.flatnonzero(paths == path)
            rows = self._upload(host_rows)
            some = RowParams(*(column[rows] for column in params))
            tokens[rows] = self._choose_by(DrawPath(path), scores[rows], host_slots[host_rows], index[rows], some)
        return tokens

    def _choose_by(
        self, path: DrawPath, scores: Tensor, host_slots: np.ndarray, index: Tensor, params: RowParams[Tensor]
    ) -> Tensor:
        """Steps 5 and 6 for rows of one path."""
        if path == DrawPath.GREEDY:
            return scores.argmax(dim=-1)
        scores = scores / params.temperature
        seed, position = self.seed[index].unsqueeze(1), self.position[index].unsqueeze(1)
        if path in (DrawPath.GUMBEL, DrawPath.NOISE):
            uniforms = entry_uniforms(seed, position, self.vocab)
            if path == DrawPath.NOISE:
                return (scores + uniforms * params.noise).argmax(dim=-1)
            return (scores - uniforms.neg_().log1p_().neg_().clamp_(min=_CLIP).log_()).argmax(dim=-1)

        if np.any(self._needs[host_slots] & Needs.MIN_P):
            scores.masked_fill_(scores < scores.amax(dim=-1, keepdim=True) + params.log_min_p, -math.inf)
        probabilities = torch.softmax(scores, dim=-1)
        uniform = row_uniform(seed, position)
        if path == DrawPath.UNLIMITED:
            return _draw_unlimited(probabilities, uniform)
        if path == DrawPath.LISTED:
            values, ids = _largest(probabilities, int(self._top_k[host_slots].max()))
        else:
            values, ids = probabilities.sort(dim=-1, descending=True, stable=True)
        return _draw_limited(probabilities, values, ids, params, uniform)

    def _update_penalties(
        self, penalties: Tensor, tokens: Tensor, index: Tensor, params: RowParams[Tensor], needs: int
    ) -> None:
        drawn = tokens.unsqueeze(1)
        old = penalties.gather(1, drawn)
        first = old == 0
        if needs & Needs.SEEN:
            unseen = (self.seen[index, tokens].unsqueeze(1) & _IN_OUTPUT) == 0
            first = torch.where(params.first_by_seen > 0, unseen, first)
        new = old * params.decay + torch.where(first, params.first, params.later)
        if needs & Needs.DECAY:
            self.penalties.index_copy_(0, index, penalties.mul_(params.decay))
        self.penalties[index, tokens] = new.squeeze(1)

    def _mark_seen(self, slot: int, tokens: Sequence[int], bit: int) -> None:
        ids = self._upload(np.unique(np.array(tokens, dtype=np.int64)))
        self.seen[slot, ids] = self.seen[slot, ids] | bit

    def _check_ids(self, name: str, ids: Sequence[int] | dict[int, float]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab:
            raise ValueError(f"{name}: token ids must be in 0 .. {self.vocab - 1}, got {min(ids)} .. {max(ids)}")

    def _upload(self, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)  # pageable memory would wait for the device


def _draw_unlimited(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Draw from [N, V] probabilities by the inverse of their running sum.

    The sum is in units of 2**-40: integers add up exactly in any order, so that an entry of weight 0
    can never be drawn, on any device. Where no entry has any, it is id 0.
    """
    sums = (probabilities * 2.0**40).long().cumsum(dim=-1)
    target = (uniform * sums[:, -1:]).long()
    return torch.searchsorted(sums, target, right=True).squeeze(1) % probabilities.shape[1]


def _largest(probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row with their ids, largest first, equal ones by id.

    `topk` alone may order equal ones in another way for another `count`: the draw would depend on
    the other rows of the batch.
    """
    ids = probabilities.topk(count, sorted=False).indices.sort(dim=-1).values
    values, order = probabilities.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _draw_limited(
    probabilities: Tensor, values: Tensor, ids: Tensor, params: RowParams[Tensor], uniform: Tensor
) -> Tensor:
    """Draw under joint top-k and top-p.

    `values` and `ids` [N, K] are the K largest of `probabilities` [N, V], largest first, K >= top_k.
    What lies above the threshold is drawn from that list, but ties at the threshold may go beyond it.
    """
    sums = values.cumsum(dim=-1, dtype=torch.float64)
    before = torch.cat([torch.zeros_like(uniform), sums[:, :-1]], dim=-1)
    rank = torch.arange(values.shape[1], device=values.device)
    kept = ((before < params.mass) & (rank < params.top_k)).sum(dim=-1, keepdim=True)
    threshold = values.gather(1, kept - 1)

    above = (values > threshold).sum(dim=-1, keepdim=True)
    mass_above = before.gather(1, above)
    tie_number = (probabilities == threshold).cumsum(dim=-1, dtype=torch.int32)
    ties = tie_number[:, -1:]
    level = threshold.double()
    tie_mass = torch.minimum(params.mass - mass_above, level * torch.minimum(params.top_k - above, ties))

    target = uniform * (mass_above + tie_mass)
    place = torch.searchsorted(sums, target, right=True).minimum(above - 1).clamp_(min=0)
    share = (target - mass_above) * ties / tie_mass.clamp(min=torch.finfo(torch.float64).tiny)
    tie = share.clamp_(min=0).int().minimum(ties - 1)
    tied = torch.searchsorted(tie_number, tie + 1)
    return torch.where(target < mass_above, ids.gather(1, place), tied).squeeze(1)


class RankedTokens:
    """Log-softmax of raw `logits` [N, V] at `tokens` [N], and its `top` largest (-inf where a logit is).

    They are on their way to the host at once; `read` waits for them.
    """

    def __init__(self, logits: Tensor, tokens: Tensor, top: int) -> None:
        logprobs = torch.log_softmax(logits, dim=-1)
        own = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        largest = logprobs.topk(min(max(top, 0), logits.shape[1]))
        self._columns = [_sent(column) for column in (own, largest.indices, largest.values)]
        self._arrived = torch.cuda.current_stream(logits.device).record_event() if logits.is_cuda else None

    def read(self) -> list[TokenLogprobs]:
        if self._arrived is not None:
            self._arrived.synchronize()
        rows = zip(*(column.tolist() for column in self._columns), strict=True)
        return [TokenLogprobs(logprob, list(zip(ids, values, strict=True))) for logprob, ids, values in rows]


def _sent(values: Tensor) -> Tensor:
    """A copy on the host, which is complete when the stream has come to here."""
    if values.device.type == "cpu":
        return values
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
