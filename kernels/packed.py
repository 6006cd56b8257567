"""The layout that every sequence op works on: rows of different lengths, laid end to end."""

from collections.abc import Sequence

import torch
from torch import Tensor


class PackedRows:
    """B rows of T tokens in all; row b is positions `first[b]` to `last[b]` and belongs to one state slot.

    Built once per step from host lists and used by every layer. All index tensors are int64 on `device`.

    slots:      [B]  the state slot of each row; no slot may occur twice
    first:      [B]  position of each row's first token
    last:       [B]  position of its last token
    by_length:  [B]  row numbers, longest row first
    time_major: [T]  positions ordered by (time, rank in `by_length`), or None when every row has one token
    active:     how many rows have a token at each time; the lengths of the runs in `time_major`
    """

    def __init__(self, slots: Sequence[int], lengths: Sequence[int], device: torch.device | str) -> None:
        if min(lengths, default=1) < 1:
            raise ValueError(f"every row must have at least one token, not {list(lengths)}")
        if len(set(slots)) != len(slots):
            raise ValueError(f"a slot occurs twice in {list(slots)}")
        length = torch.tensor(lengths, dtype=torch.int64)
        end = length.cumsum(0)
        self.slots = torch.tensor(slots, dtype=torch.int64, device=device)
        self.first = (end - length).to(device)
        self.last = (end - 1).to(device)
        self.time_major: Tensor | None = None
        if max(lengths, default=1) == 1:
            self.by_length = torch.arange(len(slots), device=device)
            self.active = [len(slots)]
            return
        by_length = length.argsort(descending=True, stable=True)
        times = torch.arange(int(length.max())).unsqueeze(1)
        running = times < length[by_length]  # [time, rank]
        self.by_length = by_length.to(device)
        self.time_major = (times + (end - length)[by_length])[running].to(device)
        self.active = running.sum(1).tolist()


class DeviceRows:
    """The same layout for the CUDA kernels: int32 on the device, no host work per row.

    slots:     [B]      the state slot of each row
    row_start: [B + 1]  position of each row's first token; the last entry is T
    row_of:    [T]      the row of each position
    numbers:   [B]      0, 1, ... B - 1
    longest:   tokens of the longest row
    singles:   how many of the first rows have one token each
    """

    def __init__(
        self, slots: Tensor, row_start: Tensor, row_of: Tensor, numbers: Tensor, longest: int, singles: int
    ) -> None:
        self.slots = slots
        self.row_start = row_start
        self.row_of = row_of
        self.numbers = numbers
        self.longest = longest
        self.singles = singles

    @classmethod
    def single_tokens(cls, slots: Tensor) -> "DeviceRows":
        """One token per row: `slots` [B] int32."""
        numbers = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
        return cls(slots, numbers, numbers[:-1], numbers[:-1], longest=1, singles=len(slots))

    @classmethod
    def of_lengths(cls, slots: Tensor, lengths: Sequence[int]) -> "DeviceRows":
        """Rows of `lengths` tokens; `slots` [B] int32 on the device."""
        length = torch.tensor(lengths, dtype=torch.int32)
        host = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(length, 0, out=host[1:])
        numbers = torch.arange(len(lengths), dtype=torch.int32)
        row_of = torch.repeat_interleave(numbers, length)
        to = slots.device
        pinned = [tensor.pin_memory() if to.type == "cuda" else tensor for tensor in (host, row_of, numbers)]
        singles = next((row for row, tokens in enumerate(lengths) if tokens > 1), len(lengths))
        return cls(slots, *(tensor.to(to, non_blocking=True) for tensor in pinned), max(lengths), singles)
