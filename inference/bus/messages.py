"""Every message that crosses a process border, in one place.

The structs are plain data (msgpack on the wire), so the engine core may use them without knowing
Redis, and the web processes without knowing torch. Structs sent for every token are arrays on the
wire; the others are maps, so that a field can be added without breaking a running peer.
"""

from typing import Literal

import msgspec

# What every back end has room for in a row. The web refuses more by the field's name.
MAX_STOP_IDS = 64
MAX_LOGIT_EDITS = 1024  # entries of `logit_bias` and `bans`, and the stop ids that `min_tokens` bars

END_OF_TEXT = 0  # the World vocabulary's only special id: it has no bytes and ends a document


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one row's tokens are drawn. `inference.engine.sampler` documents the arithmetic.

    `method`: "filter" draws after penalties, temperature, min-p, and joint top-k/top-p;
    "gumbel" is argmax(logit / T + clipped Gumbel noise); "noise" is argmax(logit / T + U(0, noise)).
    A temperature of 0, a `top_p` of 0 or a `top_k` of 1 mean greedy; `top_k` <= 0 means all tokens.

    A drawn token's penalty grows by `presence` the first time and by `frequency` each later time,
    after every penalty has been multiplied by `decay`. With `penalty="openai"` the first time adds
    `presence + frequency` and nothing decays, which is OpenAI's `count * f + (count > 0) * p`.
    """

    method: Literal["filter", "gumbel", "noise"] = "filter"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty: Literal["native", "openai"] = "native"
    presence: float = 0.0
    frequency: float = 0.0
    decay: float = 1.0
    repetition: float = 1.0  # divides positive and multiplies negative logits of tokens already seen
    noise: float = 0.0
    seed: int = 0  # a row's draws depend on (seed, position) alone
    logit_bias: dict[int, float] = {}
    bans: list[tuple[int, int]] = []  # (position, token id): that id cannot be drawn at that position
    min_tokens: int = 0  # stop ids cannot be drawn before this position


class History(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came before a prompt, by name (see `inference.history`): the log of a session up to one of its turns."""

    digest: bytes  # with no tokens, the root: it says between which prompts states may be shared
    tokens: int = 0
    session: int = 0  # where the log is: the session's primary key, and the number of the last turn
    turn: int = 0
    stays: bool = False  # other histories will grow from it too
    start: int = 0  # with no tokens: the primary key of the initial state, 0 for the zero state
    pending: list[int] = []  # token ids that the initial state has not been fed
    shared: bool = True  # with no tokens: prompts behind it may share the states of their beginnings


class Generate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One row of work: continue `prompt` by at most `max_tokens` tokens."""

    web: str  # the web process that wants the answer
    row: int  # its own number for this row
    model: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: list[int] = msgspec.field(
        default_factory=lambda: [END_OF_TEXT]
    )  # an id that ends the row, and is not part of its output
    logprobs: int = -1  # top logprobs wanted for each generated token; 0: the token's own; -1: none
    prompt_logprobs: int = -1  # the same for the prompt's tokens
    prompt_logprobs_from: int = 0  # those of them from this index on
    grammar: str = ""  # what the text must follow, see `inference.grammars`; "": anything
    history: History | None = None  # what comes before `prompt`; None: nothing, and nothing is cached
    keep: bool = False  # the state at a regular end is wanted again, as the head of a longer history
    generated: list[int] = []  # already delivered before an engine was lost: resume behind these
    request_id: str = ""
    owner: str = ""  # the caller who sent the request, and may stop and pause it
    state_key: str = ""  # the id of the session that it is a turn of
    endpoint: str = ""
    created: float = 0.0  # Unix seconds
    deadline: float = 0.0  # Unix seconds, 0: none


class Cancel(msgspec.Struct, array_like=True):
    web: str
    rows: list[int]


class LoadModel(msgspec.Struct, array_like=True):
    """For the engines named: finish what is queued, then serve another checkpoint of the same folder."""

    engines: list[str]
    model: str


class WarmStates(msgspec.Struct, array_like=True):
    """For the engine named: bring the states of these histories from the database to its memory."""

    engine: str
    histories: list[History]


Action = Literal["list", "stop", "pause", "last"]


class Order(msgspec.Struct, array_like=True):
    """For every web process: what to do with its running request of that id, "" meaning all of them.

    "last" asks for what is over: the request of each caller that ended last.
    """

    action: Action
    answers: str  # the list in Redis on which each process answers with a list of RunningRequest
    request_id: str
    owner: str | None = None  # whose requests are meant, None: everyone's


class RunningRequest(msgspec.Struct, kw_only=True):
    """One request as its web process knows it. Token counts are sums over its rows."""

    id: str
    owner: str = ""
    state_key: str = ""
    endpoint: str
    model: str
    created: float
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int
    finished: float = 0.0  # Unix seconds, 0: it still runs


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Natural-log probabilities under the model's own distribution (no penalties, temperature 1)."""

    logprob: float
    top: list[tuple[int, float]]  # (token id, logprob), best first; the token itself may be absent


# Errors of rows that end well if they are sent again a little later. All others are the row's own, or its engine's.
CANNOT_LOAD = "the session's state cannot be loaded now"
UNLOADED = "the model was unloaded"
PASSING_ERRORS = (CANNOT_LOAD, UNLOADED)

# Why a row ended. "stop": a stop id was drawn, or somebody stopped it; "length": max_tokens; "lost": its
# engine died, so it may be submitted again; "expired": its deadline passed; "error": see
# RowOutput.error; "paused": it may be resumed behind its last token.
Finish = Literal["", "stop", "length", "cancelled", "lost", "expired", "error", "paused"]


class RowOutput(msgspec.Struct, array_like=True, gc=False):
    """What one row got in one step. The first output of a row may hold no token: it was accepted.

    There are hundreds of them in every step, none in a cycle, so the garbage collector need not know them.
    """

    row: int
    position: int  # index of tokens[0] among the row's generated tokens
    tokens: list[int] = []
    finish: Finish = ""
    stop_id: int = -1  # the id that ended the row, when finish is "stop"
    logprobs: list[TokenLogprobs] | None = None  # one for each of `tokens`
    # One for each prompt token: None for the first, and for those that are not wanted.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0  # prompt tokens whose state was already there
    error: str = ""


class StepReply(msgspec.Struct, array_like=True):
    """All rows of one web process that moved in one engine step."""

    engine: str
    rows: list[RowOutput]


class ModelInfo(msgspec.Struct, kw_only=True):
    id: str
    layers: int
    width: int
    vocab: int
    parameters: int
    fingerprint: str
    random: bool = False  # made by `make_checkpoint`: its text means nothing
    created: int = 0  # Unix seconds, the file's modification time


class RunningRow(msgspec.Struct, kw_only=True):
    """One row an engine holds, for the operations page. Carries no prompt and no text."""

    web: str
    row: int
    request_id: str
    endpoint: str
    state: Literal["waiting", "prefill", "decode"]
    prompt_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    max_tokens: int
    created: float


class EngineStatus(msgspec.Struct, kw_only=True):
    """An engine's heartbeat. It is alive while its key exists."""

    engine: str
    state: Literal["loading", "ready", "draining"]
    host: str
    pid: int
    started: float  # Unix seconds
    updated: float
    model: ModelInfo | None = None
    backend: str = ""
    device: str = ""
    dtype: str = ""  # of weights and activations, and of the WKV states where that is another one
    progress: float = 0.0  # share of the checkpoint that is loaded
    slots: int = 0
    state_bytes: int = 0  # of one row's state
    memory_free: int = 0  # bytes of the device, or of the machine where the device has none of its own; 0: not known
    memory_total: int = 0
    process_memory: int = 0  # bytes of the machine's memory that this process has taken; 0: not known
    step_tokens: int = 0  # most tokens of one step
    running: int = 0
    waiting: int = 0
    steps: int = 0
    prompt_tokens: int = 0  # since the engine started
    generated_tokens: int = 0
    prompt_tokens_per_second: float = 0.0  # over the last heartbeats
    generated_tokens_per_second: float = 0.0
    step_ms: float = 0.0
    ttft_ms_p50: float | None = None  # of the last minute; None: no row has had its first token in it
    ttft_ms_p99: float | None = None
    last_error: str = ""
    available: list[str] = []  # ids of the checkpoints it could serve instead, its own among them
    failed_model: str = ""  # the one that it was told to load and could not
    device_states: list[bytes] = []  # names of the session heads in L1, see `inference.engine.state_cache`
    host_states: list[bytes] = []  # in L2
    cached_tokens: int = 0  # tokens of prompts that the prefix cache spared, since the engine started
    state_hits: int = 0  # histories whose state was in L1 or L2
    state_loads: int = 0  # histories that came from the database
    rows: list[RunningRow] = []


class EngineSample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is kept of a heartbeat for an hour. Fields are those of EngineStatus; counters go on for its life."""

    engine: str
    slots: int = 0
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms_p50: float | None = None
    ttft_ms_p99: float | None = None
    device_states: int = 0  # how many
    host_states: int = 0


class ErrorRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One failure, for the operations page. Carries nothing that a client has sent."""

    time: float  # Unix seconds
    where: str  # an endpoint, or an engine
    message: str
    status: int = 0  # the HTTP status; 0: not of a request
    request_id: str = ""
