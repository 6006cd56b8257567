"""The logprobs of prompt tokens: every position gives those of the token behind it."""

from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor

from inference.bus.messages import TokenLogprobs
from inference.engine.backend import Chunk
from inference.engine.sampler import RankedTokens

POSITIONS = 256  # whose logits exist at once


class PromptLogprobs:
    """What a step's chunks want; `read` waits for it.

    The chunks lie one after another in the step's packed positions, from `first` on. logits: indices [N] of packed
    positions -> [N, V].
    """

    def __init__(
        self, chunks: Sequence[Chunk], first: int, logits: Callable[[Tensor], Tensor], device: torch.device
    ) -> None:
        positions: list[int] = []
        targets: list[int] = []
        self._counts: list[tuple[Chunk, int]] = []
        for chunk in chunks:
            if chunk.prompt_logprobs >= 0:
                following = list(chunk.tokens[1:])
                if chunk.next_token >= 0:
                    following.append(chunk.next_token)
                wanted = range(chunk.skipped, len(following))
                positions += [first + position for position in wanted]
                targets += [following[position] for position in wanted]
                self._counts.append((chunk, len(wanted)))
            first += len(chunk.tokens)
        top = max((chunk.prompt_logprobs for chunk, _ in self._counts), default=0)
        at, of = (_uploaded(values, device) for values in (positions, targets))
        pieces = [slice(begin, begin + POSITIONS) for begin in range(0, len(positions), POSITIONS)]
        self._ranked = [RankedTokens(logits(at[piece]), of[piece], top) for piece in pieces]

    def read(self) -> dict[int, list[TokenLogprobs]]:
        """By slot, for the chunks that want any."""
        entries = (entry for ranked in self._ranked for entry in ranked.read())
        return {
            chunk.slot: [cut(entry, chunk.prompt_logprobs) for entry in islice(entries, count)]
            for chunk, count in self._counts
        }


def cut(entry: TokenLogprobs, top: int) -> TokenLogprobs:
    """With so many candidates."""
    return TokenLogprobs(entry.logprob, entry.top[:top])


def _uploaded(values: list[int], device: torch.device) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.int64)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # pageable memory would wait for the device
