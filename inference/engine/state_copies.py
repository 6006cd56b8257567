"""States on their way between the slots of a GPU and the host, while its steps go on.

A copy to or from ordinary host memory waits for the step in flight. So states go by way of pinned memory: what leaves
is first gathered on the device, behind the steps that were launched and before the next, and then copied by another
stream, beside the steps; a thread takes it out of the pinned memory. What comes in is copied by the steps' own stream.
"""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor

from inference.engine.coming_state import ComingState
from inference.engine.slot_states import check_shapes

BUFFERS = 4  # states on their way in one direction; with more, the next one waits for the oldest


class StateCopies:
    """For slots of one GPU. Only one thread may call it, always with the stream of the steps as its current one.

    The slots are given as their views of the pools, contiguous or not, by name; all have the shapes and dtypes of
    `example`.
    """

    def __init__(self, example: Mapping[str, Tensor]) -> None:
        self._device = next(iter(example.values())).device
        self._leaving: SimpleQueue[_Leaving] = SimpleQueue()  # those that are free
        for _ in range(BUFFERS):
            self._leaving.put(_Leaving(example, self._device))
        self._arriving = itertools.cycle([_Arriving(example) for _ in range(BUFFERS)])
        self._landing = _Room(example, device=self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="states")

    def export(self, slot: Mapping[str, Tensor]) -> ComingState:
        """A copy of the slot as it is behind all that was launched so far."""
        buffer = self._leaving.get()
        try:
            for name, part in buffer.gathered.parts.items():
                part.copy_(slot[name])
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                buffer.pinned.data.copy_(buffer.gathered.data, non_blocking=True)
            buffer.copied.record(self._stream)
            coming = self._worker.submit(self._take_out, buffer)
        except BaseException:
            self._leaving.put(buffer)  # or else a later export would wait for it for ever
            raise
        return ComingState(buffer.pinned.parts, buffer.pinned.data.nbytes, coming)

    def import_into(self, slot: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Put a state on the host, of any dtypes, into the slot, behind all that was launched so far.

        Raises ValueError, naming tensor and expected shape, if it does not fit.
        """
        check_shapes(state, slot)
        buffer = next(self._arriving)
        buffer.sent.synchronize()
        for name, part in buffer.pinned.parts.items():
            part.copy_(state[name])
        self._landing.data.copy_(buffer.pinned.data, non_blocking=True)
        buffer.sent.record(torch.cuda.current_stream(self._device))
        for name, part in self._landing.parts.items():
            slot[name].copy_(part)

    def _take_out(self, buffer: "_Leaving") -> dict[str, Tensor]:
        try:
            torch.cuda.set_device(self._device)  # a new thread would open the first GPU
            buffer.copied.synchronize()
            return {name: part.clone() for name, part in buffer.pinned.parts.items()}
        finally:
            self._leaving.put(buffer)


class _Room:
    """Memory for one state in one piece: `data` uint8 [bytes], and `parts`, contiguous views of it by name."""

    def __init__(self, example: Mapping[str, Tensor], *, device: torch.device | None = None) -> None:
        """`device=None` is pinned memory of the host."""
        size = sum(tensor.nbytes for tensor in example.values())
        self.data = torch.empty(size, dtype=torch.uint8, device=device or "cpu", pin_memory=device is None)
        pieces = self.data.split([tensor.nbytes for tensor in example.values()])
        self.parts = {
            name: piece.view(tensor.dtype).view(tensor.shape)
            for (name, tensor), piece in zip(example.items(), pieces, strict=True)
        }


class _Leaving:
    """What one export uses, from its gathering until the thread has taken the state out."""

    def __init__(self, example: Mapping[str, Tensor], device: torch.device) -> None:
        self.gathered = _Room(example, device=device)
        self.pinned = _Room(example)
        self.copied = torch.cuda.Event(blocking=True)  # the thread sleeps meanwhile: it is in no hurry


class _Arriving:
    """What one import uses, until `sent` has passed."""

    def __init__(self, example: Mapping[str, Tensor]) -> None:
        self.pinned = _Room(example)
        self.sent = torch.cuda.Event()
