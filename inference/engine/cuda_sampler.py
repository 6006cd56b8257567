"""The sampler of the CUDA back end: `inference.engine.sampler` as one kernel, with all its data on the device.

The host takes no part in a draw, so a step that draws can be recorded in a CUDA graph and replayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.bus.messages import MAX_LOGIT_EDITS, MAX_STOP_IDS, Sampling
from inference.engine.row_params import Needs, RowParams, choose_path, replay_penalties, row_needs, row_params
from kernels.launch import kernel

MAX_VOCAB = 65536  # what the kernel holds of a row
MAX_EDITS = MAX_LOGIT_EDITS
MAX_STOPS = MAX_STOP_IDS
_IN_PROMPT, _IN_OUTPUT = 1, 2  # bits of `CudaSampler.seen`
_FOREVER = 2**31 - 1  # behind the last position

# As `Row` and `Edit` of kernels/csrc/sample.cu.
_FLOATS = ["temperature", "mass", "log_min_p", "repetition", "first", "later", "decay", "noise"]
_INTS = ["top_k", "first_by_seen", "path", "needs", "edits", "stops"]
_RECORD = np.dtype([(name, "<f4") for name in _FLOATS] + [(name, "<i4") for name in _INTS] + [("seed", "<u8")])
_EDIT = np.dtype([("id", "<i4"), ("value", "<f4"), ("begin", "<i4"), ("end", "<i4")])


@dataclass(slots=True)
class _Opening:
    """What a slot is to be told."""

    record: np.ndarray  # one _RECORD
    edits: np.ndarray
    stops: np.ndarray
    params: RowParams
    needs: int
    generated: Sequence[int]
    prompt: Sequence[int]


class CudaSampler:
    """Sampling parameters, penalties, position and last token of every slot, and the draws.

    On the device, by slot: `penalties` float32 and `seen` uint8 [slots + 1, V], kept only for rows that
    need them; `position`, `last_token` and `done` int32 [slots + 1]. A draw of one of the row's stop ids
    sets `done`; a slot that is done draws -1 and does not change. Slot number `slots`, the dummy, is done
    for ever: it may pad a batch. Raises ValueError if `vocab` is not a multiple of 4 up to 65536.
    """

    def __init__(self, slots: int, vocab: int, device: torch.device | str = "cuda") -> None:
        if vocab % 4 or not 0 < vocab <= MAX_VOCAB:
            raise ValueError(f"vocab: the CUDA sampler takes multiples of 4 up to {MAX_VOCAB}, got {vocab}")
        self.vocab = vocab
        self.dummy = slots
        self.device = torch.device(device)
        self.penalties = torch.zeros(slots + 1, vocab, device=device)
        self.seen = torch.zeros(slots + 1, vocab, dtype=torch.uint8, device=device)
        self.position, self.last_token, self.done = torch.zeros(3, slots + 1, dtype=torch.int32, device=device)
        self.done[self.dummy] = 1
        self._records = torch.zeros(slots + 1, _RECORD.itemsize, dtype=torch.uint8, device=device)
        self._edits = torch.zeros(slots + 1, MAX_EDITS * _EDIT.itemsize, dtype=torch.uint8, device=device)
        self._stop_ids = torch.zeros(slots + 1, MAX_STOPS, dtype=torch.int32, device=device)
        self._masks = torch.zeros(slots + 1, -(-vocab // 32), dtype=torch.int32, device=device)
        self._masked = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._opening: dict[int, _Opening] = {}

    def open_slot(
        self, slot: int, sampling: Sampling, stop_ids: Sequence[int], generated: Sequence[int], prompt: Sequence[int]
    ) -> None:
        """Make `slot` a row whose next draw comes behind `generated`, as if it had drawn those itself.

        `prompt` counts for the repetition penalty alone. The device hears of it at the next `flush`, which a draw
        begins with. Raises ValueError if an id is not in 0 .. V - 1, or if there are more stop ids or changed logits
        than a slot can hold.
        """
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("bans", [token for _, token in sampling.bans])
        self._check_ids("generated", generated)
        self._check_ids("prompt", prompt)
        stops = np.array([token for token in stop_ids if 0 <= token < self.vocab], dtype=np.int32)
        if len(stops) > MAX_STOPS:
            raise ValueError(f"stop_ids: at most {MAX_STOPS}, got {len(stops)}")
        edits = _edits(sampling, stops.tolist())
        params, needs = row_params(sampling, self.vocab), row_needs(sampling)

        record = np.zeros(1, dtype=_RECORD)
        for name in params._fields:
            record[name] = getattr(params, name)
        record["path"], record["needs"] = choose_path(sampling, params, self.vocab), needs
        record["edits"], record["stops"] = len(edits), len(stops)
        record["seed"] = sampling.seed % 2**64
        self._opening[slot] = _Opening(record, edits, stops, params, needs, generated, prompt)

    def flush(self) -> None:
        """Tell the device of all slots that were opened, in the order of the current stream.

        Some hundred rows may begin in one step: told one by one, they would take longer than the step.
        """
        if not self._opening:
            return
        opening, self._opening = self._opening, {}
        rows = list(opening.values())
        slots = self._upload(np.array(list(opening), dtype=np.int64))
        stops = np.zeros((len(rows), MAX_STOPS), dtype=np.int32)
        for row, one in enumerate(rows):
            stops[row, : len(one.stops)] = one.stops
        records = np.concatenate([one.record for one in rows]).view(np.uint8).reshape(len(rows), -1)
        self._records.index_copy_(0, slots, self._upload(records))
        self._stop_ids.index_copy_(0, slots, self._upload(stops))
        positions = np.array([len(one.generated) for one in rows], dtype=np.int32)
        self.position.index_copy_(0, slots, self._upload(positions))
        for flags in (self.last_token, self.done, self._masked):
            flags.index_fill_(0, slots, 0)
        self._clear(self.seen, opening, Needs.SEEN)
        self._clear(self.penalties, opening, Needs.PENALTIES)
        for slot, one in opening.items():
            if len(one.edits):
                edits = self._upload(one.edits.view(np.uint8))
                self._edits[slot, : len(edits)].copy_(edits)
            if one.needs & Needs.SEEN:
                self._mark_seen(slot, one.prompt, _IN_PROMPT)
                self._mark_seen(slot, one.generated, _IN_OUTPUT)
            if one.needs & Needs.PENALTIES and one.generated:
                tokens, values = replay_penalties(one.params, one.generated)
                self.penalties[slot, self._upload(tokens)] = self._upload(values)

    def _clear(self, kept: Tensor, opening: Mapping[int, _Opening], needs: Needs) -> None:
        """What is kept for the slots that need it is the last row's."""
        slots = [slot for slot, one in opening.items() if one.needs & needs]
        if slots:
            kept.index_fill_(0, self._upload(np.array(slots, dtype=np.int64)), 0)

    def set_masks(self, masks: Mapping[int, np.ndarray]) -> None:
        """From now on a slot of `masks` draws only ids whose bit is set: slot -> uint32 [(V + 31) / 32]."""
        self.flush()
        if masks:
            slots = self._upload(np.array(list(masks), dtype=np.int64))
            self._masks.index_copy_(0, slots, self._upload(np.stack(list(masks.values())).view(np.int32)))
            self._masked[slots] = 1

    def draw(self, logits: Tensor, slots: Tensor) -> Tensor:
        """Draw a token for each row and account for it: `logits` float32 [B, V] -> int32 [B], -1 for done slots.

        Row i belongs to slot `slots[i]`, int32 [B]; none but a done slot may be named twice. `logits` are left
        as they are. Raises ValueError if the logits are not contiguous float32 [B, V].
        """
        self.flush()
        rows = len(slots)
        if logits.dtype != torch.float32 or logits.shape != (rows, self.vocab) or not logits.is_contiguous():
            raise ValueError(
                f"logits: expected contiguous float32 [{rows}, {self.vocab}], got {logits.dtype} {list(logits.shape)}"
            )
        tokens = torch.empty(rows, dtype=torch.int32, device=self.device)
        if rows:
            kernel("rwkv_sample")(
                logits, slots, tokens, rows, self.vocab, self._records, self.penalties, self.seen, self._edits,
                MAX_EDITS, self._stop_ids, MAX_STOPS, self._masks, self._masked, self.position, self.last_token,
                self.done,
            )  # fmt: skip
        return tokens

    def moving(self, slots: Tensor) -> Tensor:
        """`slots`, int32 [B], with the dummy in place of those that are done."""
        self.flush()
        moving = torch.empty_like(slots)
        if len(slots):
            kernel("rwkv_redirect")(slots, self.done, self.dummy, moving, len(slots))
        return moving

    def _mark_seen(self, slot: int, tokens: Sequence[int], bit: int) -> None:
        ids = self._upload(np.unique(np.array(tokens, dtype=np.int64)))
        self.seen[slot, ids] = self.seen[slot, ids] | bit

    def _check_ids(self, name: str, ids: Sequence[int] | dict[int, float]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab:
            raise ValueError(f"{name}: token ids must be in 0 .. {self.vocab - 1}, got {min(ids)} .. {max(ids)}")

    def _upload(self, values: np.ndarray) -> Tensor:
        # A pinned buffer of its own each time: torch takes none back before the stream has read it.
        return torch.from_numpy(values).pin_memory().to(self.device, non_blocking=True)


def _edits(sampling: Sampling, stop_ids: Sequence[int]) -> np.ndarray:
    """What is added to logits, as entries of id, value, and the first position and the one behind the last."""
    entries = [(token, bias, 0, _FOREVER) for token, bias in sampling.logit_bias.items()]
    entries += [(token, -np.inf, position, position + 1) for position, token in sampling.bans if position < _FOREVER]
    if sampling.min_tokens > 0:
        entries += [(token, -np.inf, 0, min(sampling.min_tokens, _FOREVER)) for token in stop_ids]
    if len(entries) > MAX_EDITS:
        raise ValueError(
            f"logit_bias, together with bans and the stop ids of min_tokens: at most {MAX_EDITS} entries, "
            f"got {len(entries)}"
        )
    return np.array(entries, dtype=_EDIT)
