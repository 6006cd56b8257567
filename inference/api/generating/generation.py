"""From rows of token ids to choices of text: what every generating endpoint is built on.

`start` queues the rows and returns a `Generation`; its `deltas` turn tokens into text as they come,
and end a choice at a stop string. Leaving the `Generation` cancels whatever still runs, so a client
that goes away frees its slots.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol
from weakref import WeakKeyDictionary

from django.conf import settings

from inference.bus.call import BusError, Call
from inference.bus.client import BusClient
from inference.bus.messages import EngineStatus, Generate, History, ModelInfo, RowOutput, Sampling, TokenLogprobs
from inference.text.stream import TextStream
from inference.text.tokenizer import get_tokenizer
from sessions.models import InitialState
from sessions.store import beginning

# A process with few streams hands every token on as it comes; one with many gathers some per event,
# since an event costs far more than a token: the more streams, the longer.
BUSY_ROWS = 32
GATHER_TOKENS = 8
GATHER_SECONDS_PER_ROW = 0.0004
GATHER_SECONDS = 0.15  # the longest

MAX_REQUEST_TOKENS = 16_000_000  # of all its prompts, one for each choice: three bytes each in Redis

FinishReason = Literal["stop", "length"]

caller: ContextVar[str] = ContextVar("caller", default="")  # the name of whom the current request is from


# What the current request wants to begin with instead of the zero state.
initial_state: ContextVar[InitialState | None] = ContextVar("initial_state", default=None)


class WrongState(Exception):
    """The initial state is of another model."""


class TooManyTokens(Exception):
    """The prompts of one request are more than the queues should hold."""


class GenerationFailed(Exception):
    """The rest of a generation cannot be had. The message is fit for the client."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One choice: its prompt and how its tokens are drawn."""

    prompt: list[int]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)  # handed on before a pause: go on behind these
    prompt_logprobs_from: int = 0  # no logprobs of the prompt's tokens before this one


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    rows: list[Row]
    model: str
    endpoint: str
    request_id: str
    max_tokens: int
    stop_ids: list[int]
    stop_strings: list[str] = field(default_factory=list)
    include_stop: bool = False
    logprobs: int = -1
    prompt_logprobs: int = -1
    grammar: str = ""  # what the text of every row must follow, see `inference.grammars`
    chunk_size: int | None = None  # new tokens gathered per choice before they are handed on
    offline: bool = False
    resumable: bool = True  # may be paused; else a pause stops it
    deadline: float = 0.0  # Unix seconds, 0: none
    history: History | None = None  # what the one row continues
    keep: bool = False  # the state at its end is wanted again
    state_key: str = ""  # the id of the session that it is a turn of
    prefix_cache: bool = True  # begin at, and keep, states of the prompts' beginnings


@dataclass(slots=True)
class Delta:
    """News of one choice. The last one has a `finish_reason`."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Choice:
    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_reason: str | int | None = None


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
        self._writers = [_ChoiceWriter(index, request) for index in range(rows)]
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
        """Yield news of all choices, merged while the consumer was busy, until every choice ended.

        Raises GenerationFailed when the engine cannot go on.
        """
        while self._open:
            rows = self._bus.active_rows
            busy = self.request.chunk_size is None and rows > BUSY_ROWS
            gather = GATHER_TOKENS * self._open if busy else 1
            patience = min(rows * GATHER_SECONDS_PER_ROW, GATHER_SECONDS) if busy else 0.0
            try:
                outputs = await self._call.take(gather, patience)
            except BusError as error:
                raise GenerationFailed(str(error)) from error
            deltas = [delta for index, output in outputs if (delta := self._advance(index, output))]
            if deltas:
                if self._turn:
                    await self._turn.note(deltas, self._call.engine)
                yield _merged(deltas) if len(deltas) > 1 else deltas

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


class _ChoiceWriter:
    """Turns one row's tokens into text, and gathers `chunk_size` of them.

    A token is handed on with the text it contributes to, so that one whose text may yet turn out to be
    a stop string (or is half a character) stays back together with it.
    """

    def __init__(self, index: int, request: GenerationRequest) -> None:
        self.index = index
        self.ended = False
        self._stream = TextStream(get_tokenizer(), request.stop_strings, request.include_stop)
        self._chunk_size = request.chunk_size or 1
        self._text = ""
        generated = request.rows[index].generated
        self.shown_tokens = self._handed_on = self._stream.push(generated).tokens
        self._tokens = generated[self._handed_on :]  # received and not handed on
        self._logprobs: list[TokenLogprobs] | None = [] if request.logprobs >= 0 else None

    def write(self, output: RowOutput) -> Delta | None:
        piece = self._stream.push(output.tokens)
        self._text += piece.text
        self._tokens += output.tokens
        if self._logprobs is not None and output.logprobs:
            self._logprobs += output.logprobs
        self.shown_tokens = piece.tokens
        if piece.stop is not None:
            return self._end("stop", piece.stop)
        if output.finish == "paused":  # what is held back comes with the rest
            return self._end("stop", None)
        if output.finish:
            self._text += self._stream.finish()
            self.shown_tokens = self._handed_on + len(self._tokens)
            if output.finish == "length":
                return self._end("length", None)
            return self._end("stop", output.stop_id if output.stop_id > 0 else None)
        if self._text and self.shown_tokens - self._handed_on >= self._chunk_size:
            return self._flush()
        return None

    def _end(self, finish_reason: FinishReason, stop_reason: str | int | None) -> Delta:
        self.ended = True
        delta = self._flush()
        delta.finish_reason, delta.stop_reason = finish_reason, stop_reason
        return delta

    def _flush(self) -> Delta:
        count = self.shown_tokens - self._handed_on
        delta = Delta(self.index, self._text, self._tokens[:count])
        self._text, self._tokens, self._handed_on = "", self._tokens[count:], self.shown_tokens
        if self._logprobs is not None:
            delta.logprobs, self._logprobs = self._logprobs[:count], self._logprobs[count:]
        return delta


def _merged(deltas: list[Delta]) -> list[Delta]:
    """One delta for each choice: several steps may have come while the consumer was busy."""
    merged: dict[int, Delta] = {}
    for delta in deltas:
        known = merged.setdefault(delta.index, delta)
        if known is not delta:
            known.text += delta.text
            known.tokens += delta.tokens
            if known.logprobs is not None:
                known.logprobs += delta.logprobs or []
            known.finish_reason, known.stop_reason = delta.finish_reason, delta.stop_reason
    return list(merged.values())


_clients: "WeakKeyDictionary[asyncio.AbstractEventLoop, BusClient]" = WeakKeyDictionary()


def bus() -> BusClient:
    """The process's bus client (one for each event loop; a server has one loop)."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        config = settings.RWKV
        _clients[loop] = BusClient(
            config.redis_url, max_queue=config.max_queue, grace_seconds=config.engine_grace_seconds
        )
    return _clients[loop]


async def start(request: GenerationRequest, turn: TurnKeeper | None = None) -> Generation:
    """Queue a request's rows.

    Raises NoEngine, QueueFull, WrongState or TooManyTokens, in which case nothing was queued.
    """
    created = time.time()
    tokens = sum(len(row.prompt) for row in request.rows)
    if tokens > MAX_REQUEST_TOKENS:
        raise TooManyTokens(f"expected at most {MAX_REQUEST_TOKENS} tokens in all prompts together, got {tokens}")
    history = request.history
    if history is None:
        history = await _beginning(request.model, shared=request.prefix_cache)
        if history and history.start:
            request.history = history  # it goes on behind the same state after a pause
    rows = [
        Generate(
            web="",
            row=0,
            model=request.model,
            prompt=row.prompt,
            max_tokens=request.max_tokens,
            sampling=row.sampling,
            stop_ids=request.stop_ids,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            prompt_logprobs_from=row.prompt_logprobs_from,
            grammar=request.grammar,
            request_id=request.request_id,
            owner=caller.get(),
            state_key=request.state_key,
            endpoint=request.endpoint,
            generated=row.generated,
            created=created,
            deadline=request.deadline,
            history=history,
            keep=request.keep,
        )
        for row in request.rows
    ]
    client = bus()
    note = request if request.resumable else None
    return Generation(client, await client.submit(rows, offline=request.offline, note=note), request, turn)


async def _beginning(model: str, *, shared: bool) -> History | None:
    """What the prompts of one caller begin behind; None: nothing, and nothing is shared. Raises WrongState."""
    start = initial_state.get()
    if not (shared or start):
        return None
    for engine in await live_engines():
        if engine.model and engine.model.id == model:
            history = beginning(caller.get(), engine.model, check_state(start, engine.model))
            history.shared = shared
            return history
    return None


def check_state(state: InitialState | None, model: ModelInfo) -> InitialState | None:
    """The state itself. Raises WrongState if it is of another model."""
    if state and state.model_fingerprint != model.fingerprint:
        raise WrongState(f"state_id: {state.key} is a state of the model {state.model}, not of {model.id}")
    return state


async def live_engines() -> list[EngineStatus]:
    """The engines that are alive. Raises NoEngine when Redis is away."""
    return await bus().engines()


async def live_models() -> list[ModelInfo]:
    """The models that are loaded, each once. Raises NoEngine when Redis is away."""
    models = {engine.model.id: engine.model for engine in await live_engines() if engine.model}
    return list(models.values())
