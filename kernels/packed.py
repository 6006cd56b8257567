"""The layout that every sequence op works on: rows of different lengths, laid end to end."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

PAD_TOKENS = 64  # of a row that fills what is left of a recorded step: short ones, as rows are worked on side by side


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
    singles:   how many of the first rows have one token each
    counts:    None, or [2] where a recorded step finds `singles` and the number of rows; then `singles` and B are the
               most there may be
    """

    def __init__(
        self,
        slots: Tensor,
        row_start: Tensor,
        row_of: Tensor,
        *,
        singles: int,
        counts: Tensor | None = None,
    ) -> None:
        self.slots = slots
        self.row_start = row_start
        self.row_of = row_of
        self.singles = singles
        self.counts = counts

    @property
    def lone(self) -> bool:
        """Every row is known to have one token."""
        return self.counts is None and self.singles == len(self.slots)

    @classmethod
    def single_tokens(cls, slots: Tensor) -> "DeviceRows":
        """One token per row: `slots` [B] int32."""
        numbers = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
        return cls(slots, numbers, numbers[:-1], singles=len(slots))

    @classmethod
    def of_lengths(cls, slots: Tensor, lengths: Sequence[int]) -> "DeviceRows":
        """Rows of `lengths` tokens; `slots` [B] int32 on the device."""
        row_lengths = np.array(lengths, dtype=np.int32)
        row_start = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(row_lengths, out=row_start[1:])
        host = (torch.from_numpy(array) for array in (row_start, _row_of(row_lengths)))
        to = slots.device
        pinned = (tensor.pin_memory() if to.type == "cuda" else tensor for tensor in host)
        on_device = (tensor.to(to, non_blocking=True) for tensor in pinned)
        return cls(slots, *on_device, singles=count_singles(lengths))

    def ends(self, lengths: Sequence[int]) -> tuple[Tensor, "DeviceRows"]:
        """`end_positions` of the rows, on the device, and rows of just these. `lengths` are those of the rows."""
        positions, kept = end_positions(lengths)
        at = torch.tensor(positions, dtype=torch.int64)
        device = self.slots.device
        at = (at.pin_memory() if device.type == "cuda" else at).to(device, non_blocking=True)
        return at, DeviceRows.of_lengths(self.slots[: len(lengths)], kept)


class RecordedRows(DeviceRows):
    """Rows for a step that is recorded once: always `tokens` positions, in memory that `fill` writes anew each time.

    ids: [T] what the positions were filled with. Positions that are left over are rows of up to PAD_TOKENS of the
    slot `dummy`, whose state means nothing.
    """

    def __init__(self, tokens: int, most_rows: int, dummy: int, device: torch.device) -> None:
        """`most_rows`: what `fill` is given at most, the rows of what is left over included."""
        self._dummy = dummy
        sizes = most_rows, most_rows + 1, 2, tokens, tokens
        self._data = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        slots, row_start, counts, row_of, self.ids = self._data.split(sizes)
        super().__init__(slots, row_start, row_of, singles=most_rows, counts=counts)
        self.fill([], [], [])

    def fill(self, slots: Sequence[int], lengths: Sequence[int], ids: Sequence[int]) -> None:
        """Rows for the next run, in the order of the current stream; `ids` are those of all rows, end to end.

        Raises ValueError if there are more rows or tokens than were reserved.
        """
        tokens, most_rows = len(self.ids), len(self.slots)
        left = tokens - len(ids)
        padding = [min(PAD_TOKENS, left - done) for done in range(0, left, PAD_TOKENS)]
        rows = len(lengths) + len(padding)
        if left < 0 or rows > most_rows:
            raise ValueError(f"{len(ids)} tokens in {rows} rows: there is place for {tokens} in {most_rows}")
        host = torch.zeros(len(self._data), dtype=torch.int32, pin_memory=self._data.is_cuda)
        parts = host.split((most_rows, most_rows + 1, 2, tokens, tokens))
        host_slots, row_start, counts, row_of, host_ids = (part.numpy() for part in parts)
        row_lengths = np.array([*lengths, *padding], dtype=np.int32)
        host_slots[:] = self._dummy
        host_slots[: len(slots)] = slots
        np.cumsum(row_lengths, out=row_start[1 : rows + 1])
        counts[:] = count_singles(lengths), rows
        row_of[:] = _row_of(row_lengths)
        host_ids[: len(ids)] = ids
        self._data.copy_(host, non_blocking=True)


def _row_of(lengths: np.ndarray) -> np.ndarray:
    """The row of each position, int32. By numpy: PyTorch shares it out among threads, which takes milliseconds."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def end_positions(lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """The last two positions of every row, or the one it has, and how many of each row these are.

    It is what a channel mix has to see so that the last one comes out right.
    """
    kept = [min(length, 2) for length in lengths]
    behind, positions = 0, []
    for length, wanted in zip(lengths, kept, strict=True):
        behind += length
        positions += range(behind - wanted, behind)
    return positions, kept


def count_singles(lengths: Sequence[int]) -> int:
    return next((row for row, tokens in enumerate(lengths) if tokens > 1), len(lengths))
