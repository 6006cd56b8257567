"""A request that runs: `start` queues its rows, and the `Generation` yields their text as it comes.

Leaving a `Generation` cancels whatever still runs, so a client that goes away frees its slots.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from inference.api.rows.choices import Choice, ChoiceWriter, Delta
from inference.api.rows.engines import bus
from inference.api.rows.request import GenerationRequest, describe_rows
from inference.bus.call import BusError, Call
from inference.bus.client import BusClient
from inference.bus.messages import RowOutput, TokenLogprobs

# A process with few streams hands every token on as it comes; one with many gathers some per event behind
# the first, since an event costs far more than a token: the more streams, the longer.
BUSY_ROWS = 16
GATHER_TOKENS = 8
GATHER_SECONDS_PER_ROW = 0.0006
GATHER_SECONDS = 0.15  # the longest


class GenerationFailed(Exception):
    """The rest of a generation cannot be had. The message is fit for the client."""


class TurnKeeper(Protocol):
    """What is to see a generation's deltas before its consumer does, and to know when it is over."""

    async def note(self, deltas: list[Delta], engine: str) -> None: ...

    async def release(self) -> None: ...


class Generation:
    """A running request. Use as an async context manager: leaving it cancels what still runs."""

    def __init__(self, bus: BusClient, call: Call, request: GenerationRequest, turn: TurnKeeper | None = None) -> None:
        rows = len(request.rows)
        self.request = request
        self._turn = turn
        self.prompt_tokens = [len(row.prompt) for row in request.rows]
        self.completion_tokens = [0] * rows
        self.cached_tokens = [0] * rows
        self.prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * rows
        self._bus = bus
        self._call = call
        self._writers = [ChoiceWriter(index, request) for index in range(rows)]
        self._open = rows

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._bus.cancel(self._call)
        self._bus.note_end(self._call)
        await self.release()

    async def release(self) -> None:
        """Let the session's next turn begin, if this is one's turn. To be called again at will."""
        if self._turn:
            await self._turn.release()

    @property
    def over(self) -> bool:
        """Every choice has ended, though the last deltas may not have been read."""
        return not self._open

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Yield news of all choices, one delta for each that has any, until every choice ended.

        Raises GenerationFailed when the engine cannot go on.
        """
        waiting = True  # for a first token, which nobody shall wait for longer than the engine takes
        while self._open:
            rows = self._bus.active_rows
            busy = self.request.chunk_size is None and rows > BUSY_ROWS and not waiting
            gather = GATHER_TOKENS * self._open if busy else 1
            patience = min(rows * GATHER_SECONDS_PER_ROW, GATHER_SECONDS) if busy else 0.0
            try:
                outputs = await self._call.take(gather, patience)
            except BusError as error:
                raise GenerationFailed(str(error)) from error
            waiting = False
            news = joined(outputs) if len(outputs) > 1 else outputs
            deltas = [delta for index, output in news if (delta := self._advance(index, output))]
            if deltas:
                if self._turn:
                    await self._turn.note(deltas, self._call.engine)
                yield deltas

    async def collect(self) -> list[Choice]:
        """Run to the end. Raises GenerationFailed."""
        choices = [Choice(index) for index in range(len(self._writers))]
        async for deltas in self.deltas():
            for delta in deltas:
                choice = choices[delta.index]
                choice.text += delta.text
                choice.tokens += delta.tokens
                choice.logprobs += delta.logprobs or []
                if delta.finish_reason:
                    choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        return choices

    def _advance(self, index: int, output: RowOutput) -> Delta | None:
        writer = self._writers[index]
        if writer.ended:
            return None
        self.cached_tokens[index] = output.cached_tokens or self.cached_tokens[index]
        self.prompt_logprobs[index] = output.prompt_logprobs or self.prompt_logprobs[index]
        delta = writer.write(output)
        self.completion_tokens[index] = writer.shown_tokens
        if writer.ended:
            self._open -= 1
            if not output.finish:  # a stop string ended it here, and the engine does not know yet
                self._bus.cancel(self._call, index)
        return delta


def joined(outputs: Iterable[tuple[int, RowOutput]]) -> Iterable[tuple[int, RowOutput]]:
    """One output for each row, when several steps have come: their tokens become text in one go."""
    rows: dict[int, RowOutput] = {}
    for index, output in outputs:
        known = rows.setdefault(index, output)
        if known is not output:
            known.tokens += output.tokens
            if output.logprobs:
                known.logprobs = [*(known.logprobs or []), *output.logprobs]
            known.prompt_logprobs = output.prompt_logprobs or known.prompt_logprobs
            known.cached_tokens = output.cached_tokens or known.cached_tokens
            known.finish, known.stop_id = output.finish, output.stop_id
    return rows.items()


async def start(request: GenerationRequest, turn: TurnKeeper | None = None) -> Generation:
    """Queue a request's rows.

    Raises NoEngine, QueueFull, WrongState or TooManyTokens, in which case nothing was queued.
    """
    rows = await describe_rows(request)
    client = bus()
    note = request if request.resumable else None
    return Generation(client, await client.submit(rows, offline=request.offline, note=note), request, turn)
