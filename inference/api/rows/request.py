"""What one request wants of the engines, and how its rows are said to them."""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from inference.api.rows.engines import live_engines
from inference.bus.messages import Generate, History, ModelInfo, Sampling
from sessions.models import InitialState
from sessions.store import beginning

MAX_REQUEST_TOKENS = 16_000_000  # of all its prompts, one for each choice: three bytes each in Redis
MAX_GRAMMAR_LETTERS = 48_000_000  # in the same way: each row's message has its own

caller: ContextVar[str] = ContextVar("caller", default="")  # the name of whom the current request is from
# What the current request wants to begin with instead of the zero state.
initial_state: ContextVar[InitialState | None] = ContextVar("initial_state", default=None)


class WrongState(Exception):
    """The initial state is of another model."""


class TooManyTokens(Exception):
    """The prompts, or the grammars, of one request are more than the queues should hold."""


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


async def describe_rows(request: GenerationRequest) -> list[Generate]:
    """The message for each row. Raises NoEngine, WrongState or TooManyTokens."""
    created = time.time()
    tokens = sum(len(row.prompt) for row in request.rows)
    if tokens > MAX_REQUEST_TOKENS:
        raise TooManyTokens(f"expected at most {MAX_REQUEST_TOKENS} tokens in all prompts together, got {tokens}")
    letters = len(request.grammar) * len(request.rows)
    if letters > MAX_GRAMMAR_LETTERS:
        raise TooManyTokens(f"expected at most {MAX_GRAMMAR_LETTERS} letters in all grammars together, got {letters}")
    history = request.history
    if history is None:
        history = await _beginning(request.model, shared=request.prefix_cache)
        if history and history.start:
            request.history = history  # it goes on behind the same state after a pause
    return [
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
