"""The logprobs of prompt tokens: every position gives those of the token behind it."""

from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor

from inference.bus.messages import TokenLogprobs
from inference.engine.backend import Chunk
from inference.engine.sampler import token_logprobs

POSITIONS = 256  # whose logits exist at once


def prompt_logprobs(
    chunks: Sequence[Chunk], first: int, logits: Callable[[Tensor], Tensor], device: torch.device
) -> dict[int, list[TokenLogprobs]]:
    """By slot, for the chunks that want any. Waits for the device.

    The chunks lie one after another in the step's packed positions, from `first` on. logits: indices [N] of packed
    positions -> [N, V].
    """
    positions: list[int] = []
    targets: list[int] = []
    counts: list[tuple[Chunk, int]] = []
    for chunk in chunks:
        if chunk.prompt_logprobs >= 0:
            following = list(chunk.tokens[1:])
            if chunk.next_token >= 0:
                following.append(chunk.next_token)
            wanted = range(chunk.skipped, len(following))
            positions += [first + position for position in wanted]
            targets += [following[position] for position in wanted]
            counts.append((chunk, len(wanted)))
        first += len(chunk.tokens)
    top = max((chunk.prompt_logprobs for chunk, _ in counts), default=0)
    at, of = (torch.tensor(values, dtype=torch.int64).to(device) for values in (positions, targets))
    found: list[TokenLogprobs] = []
    for begin in range(0, len(positions), POSITIONS):
        piece = slice(begin, begin + POSITIONS)
        found += token_logprobs(logits(at[piece]), of[piece], top)
    entries = iter(found)
    return {chunk.slot: [_cut(entry, chunk.prompt_logprobs) for entry in islice(entries, n)] for chunk, n in counts}


def _cut(entry: TokenLogprobs, top: int) -> TokenLogprobs:
    return TokenLogprobs(entry.logprob, entry.top[:top])
