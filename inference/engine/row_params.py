"""What one row asks of the sampler, worked out on the host when its slot is opened."""

import math
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from inference.bus.messages import Sampling

_LISTED_MAX = 1024  # up to this top-k the largest probabilities are listed; beyond it all are sorted

T = TypeVar("T")


class DrawPath(IntEnum):
    """Which arithmetic a row takes; rows of one path are drawn together."""

    GREEDY = 0
    UNLIMITED = 1  # "filter" without top-k and top-p
    LISTED = 2
    SORTED = 3
    GUMBEL = 4
    NOISE = 5


class Needs(IntFlag):
    """Which buffers and steps a row cannot do without; a batch skips what none of its rows needs."""

    REPETITION = 1
    EDITS = 2
    PENALTIES = 4
    DECAY = 8
    SEEN = 16
    MIN_P = 32


class RowParams(NamedTuple, Generic[T]):
    """Parameters as the arithmetic wants them: of one row, T is float; of N rows, a float32 tensor [N, 1]."""

    temperature: T
    top_k: T  # 1 .. V
    mass: T  # top_p, or inf
    log_min_p: T
    repetition: T
    first: T  # what a penalty grows by
    later: T
    decay: T
    first_by_seen: T  # 1: "first" is an id not drawn before; 0: one with penalty 0
    noise: T


class Edits:
    """What is added to a row's logits: its bias, and -inf for the ids barred at a position."""

    def __init__(self, sampling: Sampling, stop_ids: Sequence[int], vocab: int) -> None:
        self._bias = list(sampling.logit_bias.items())
        self._bans: dict[int, list[int]] = {}
        for position, token in sampling.bans:
            self._bans.setdefault(position, []).append(token)
        self._min_tokens = sampling.min_tokens
        self._stop_ids = [token for token in stop_ids if 0 <= token < vocab]

    def at(self, position: int) -> list[tuple[int, float]]:
        """(id, what to add to its logit) at the draw of this position."""
        barred = self._bans.get(position, [])
        if position < self._min_tokens:
            barred = barred + self._stop_ids
        return self._bias + [(token, -math.inf) for token in barred]


def row_params(sampling: Sampling, vocab: int) -> RowParams[float]:
    native = sampling.penalty == "native"
    return RowParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k if 0 < sampling.top_k < vocab else vocab,
        mass=sampling.top_p if 0 <= sampling.top_p < 1 else math.inf,
        log_min_p=math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf,
        repetition=sampling.repetition,
        first=sampling.presence + (0.0 if native else sampling.frequency),
        later=sampling.frequency,
        decay=sampling.decay if native else 1.0,
        first_by_seen=0.0 if native else 1.0,
        noise=sampling.noise,
    )


def choose_path(sampling: Sampling, params: RowParams[float], vocab: int) -> DrawPath:
    top_p = np.float32(sampling.top_p)  # as the device has it: a mass too small for it is none
    greedy = sampling.temperature <= 0 or top_p == 0 or sampling.top_k == 1
    if greedy or (sampling.method == "noise" and sampling.noise == 0):
        return DrawPath.GREEDY
    if sampling.method != "filter":
        return DrawPath.GUMBEL if sampling.method == "gumbel" else DrawPath.NOISE
    if params.top_k == vocab and params.mass == math.inf:
        return DrawPath.UNLIMITED
    return DrawPath.LISTED if params.top_k <= _LISTED_MAX else DrawPath.SORTED


def row_needs(sampling: Sampling) -> Needs:
    needs = Needs(0)
    if sampling.presence or sampling.frequency:
        needs |= Needs.PENALTIES
        if sampling.penalty == "openai":
            needs |= Needs.SEEN
        elif sampling.decay != 1:
            needs |= Needs.DECAY
    if sampling.repetition != 1:
        needs |= Needs.REPETITION | Needs.SEEN
    if sampling.logit_bias or sampling.bans or sampling.min_tokens:
        needs |= Needs.EDITS
    if sampling.min_p > 0:
        needs |= Needs.MIN_P
    return needs


def replay_penalties(params: RowParams[float], generated: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and float32 penalties after drawing `generated`, rounded step by step as `draw` rounds."""
    tokens, columns = np.unique(np.array(generated, dtype=np.int64), return_inverse=True)
    values = np.zeros(len(tokens), dtype=np.float32)
    seen = np.zeros(len(tokens), dtype=bool)
    first, later, decay = (np.float32(value) for value in (params.first, params.later, params.decay))
    for column in columns:
        is_first = not seen[column] if params.first_by_seen else values[column] == 0
        values *= decay
        values[column] += first if is_first else later
        seen[column] = True
    return tokens, values
