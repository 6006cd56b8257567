"""The rows of one request and their mailbox, and what can go wrong with them."""

import asyncio
from collections.abc import Sequence
from typing import Any

from inference.bus.messages import PASSING_ERRORS, Generate, RowOutput


class BusError(Exception):
    """Something between here and the engine failed. `retry_after` is in seconds."""

    retry_after = 1


class NoEngine(BusError):
    """No engine is alive for this model, or it is still loading."""

    retry_after = 5


class QueueFull(BusError):
    """More rows wait than the service accepts."""


class RowFailed(BusError):
    """The engine gave up on a row."""

    @property
    def passes(self) -> bool:
        """Whether the same row may do better a little later; most would break the engine again."""
        return str(self) in PASSING_ERRORS


class Call:
    """The rows of one request and their mailbox. Rows are numbered from 0 in the order submitted.

    `note` is what the submitter needs to resume the request after a pause; None: it cannot be resumed.
    """

    def __init__(self, requests: Sequence[Generate], note: Any = None) -> None:
        self.requests = list(requests)
        self.note = note
        self.delivered = [len(request.generated) for request in requests]
        self.running = set(range(len(self.requests)))  # rows that have not ended
        self.engine = ""  # that sent its newest tokens
        self.numbers: set[int] = set()  # under which its rows were submitted
        self._outputs: list[tuple[int, RowOutput]] = []
        self._tokens = 0
        self._urgent = False  # a first token, an end or an error is waiting: wake at once
        self._error: BusError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._gather = 1

    @property
    def done(self) -> bool:
        """Every row has ended and all its outputs were taken."""
        return not (self.running or self._outputs)

    async def take(self, gather: int = 1, patience: float = 0.0) -> list[tuple[int, RowOutput]]:
        """Everything that came since the last call, as (row index, output); waits for something.

        Waits for `gather` tokens, but not longer than `patience` seconds once there is any, and not
        at all when a row's first token or end is among them. Raises BusError if the call failed.
        """
        if not self._ready(gather):
            loop = asyncio.get_running_loop()
            patient_until = loop.time() + patience
            while not self._ready(gather if loop.time() < patient_until else 1):
                self._gather = gather if loop.time() < patient_until else 1
                self._waiter = loop.create_future()
                timer = loop.call_at(patient_until, self._wake) if self._gather > 1 else None
                try:
                    await self._waiter
                finally:
                    self._waiter = None
                    if timer:
                        timer.cancel()
        if self._error and not self._outputs:
            raise self._error
        outputs, self._outputs = self._outputs, []
        self._tokens, self._urgent = 0, False
        return outputs

    def put(self, index: int, output: RowOutput) -> None:
        first = self.delivered[index] == 0
        self.delivered[index] += len(output.tokens)
        self._outputs.append((index, output))
        self._tokens += len(output.tokens)
        self._urgent = self._urgent or first or bool(output.finish)
        if output.finish:
            self.running.discard(index)
        if self._ready(self._gather):
            self._wake()

    def fail(self, error: BusError) -> None:
        self._error = error
        self._wake()

    def _ready(self, gather: int) -> bool:
        return self._urgent or self._error is not None or (self._tokens >= gather and bool(self._outputs))

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)
