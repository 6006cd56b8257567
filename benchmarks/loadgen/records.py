"""What one request of a load left behind, and what a whole run did: the contract between the parts of the generator.

Times are seconds on one monotonic clock, counted from the start of the run; a time that never came is None.
Raw facts only: every metric is derived from them in `metrics`, in one place.
"""

from enum import StrEnum
from typing import Any

import msgspec


class Phase(StrEnum):
    """Where in the run a request was sent; only `MEASURE` counts in the measured window."""

    WARMUP = "warmup"
    RAMP = "ramp"
    MEASURE = "measure"
    DRAIN = "drain"


class ErrorClass(StrEnum):
    """Why a request failed; the empty string is success."""

    NONE = ""
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST = "timeout_first"
    TIMEOUT_TOTAL = "timeout_total"
    HTTP_4XX = "http_4xx"
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    STREAM_TRUNCATED = "stream_truncated"
    PARSE = "parse"
    EMPTY = "empty"
    CANCELLED = "cancelled"
    CLIENT_BUG = "client_bug"


class TokenSource(StrEnum):
    """Where a token count comes from, best first; sources are never mixed within one request."""

    USAGE = "usage"
    IDS = "ids"
    CHUNKS = "chunks"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"
    NONE = ""


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """One piece of the stream that carried content (a role-only or empty delta is none).

    `tokens` is None where the server did not say how many tokens the piece holds. `choice` is the place in the batch:
    one request may carry several streams.
    """

    time: float
    tokens: int | None
    reasoning: bool = False
    choice: int = 0


class RequestRecord(msgspec.Struct, kw_only=True):
    index: int
    worker: int = 0
    user: int | None = None
    session: str | None = None
    turn: int = 0
    phase: Phase = Phase.MEASURE
    intended: float | None = None  # by the schedule; None in a closed loop
    sent: float | None = None
    headers: float | None = None
    done: float | None = None  # the stream was closed, or the failure was known
    chunks: list[Chunk] = []
    prompt_tokens: int | None = None
    prompt_tokens_source: TokenSource = TokenSource.NONE
    output_tokens: int | None = None
    output_tokens_source: TokenSource = TokenSource.NONE
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    expected_output_tokens: int | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    error: ErrorClass = ErrorClass.NONE
    error_text: str = ""
    bytes_in: int = 0
    connection_reused: bool | None = None
    text: str | None = None  # kept only when asked for

    @property
    def succeeded(self) -> bool:
        return self.error is ErrorClass.NONE and self.done is not None


class RateChange(msgspec.Struct, frozen=True):
    time: float
    rate: float


class ServerSample(msgspec.Struct, frozen=True):
    """What the server said of itself at one moment; None for what it does not tell."""

    time: float
    running: float | None  # requests, or rows of its batch
    waiting: float | None
    tokens_per_second: float | None  # that it generated


class ClientHealth(msgspec.Struct, kw_only=True):
    """Whether the generator itself kept up, with the reasons in words.

    `verdict` is "ok", "warn" (its own delays show in the figures) or "client-limited" (they are no figures of the
    server); "unknown" for an imported run.
    """

    verdict: str
    reasons: list[str]
    send_lag_p99_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    achieved_send_ratio: float | None = None
    cpu_percent_max: float | None = None


class RunResult(msgspec.Struct, kw_only=True):
    """A finished (or cancelled) run: everything that the exports, the database and the pages are made from."""

    run_id: str
    kind: str  # serve, clients, multiturn, imported
    started_at: str  # ISO 8601, UTC
    duration: float  # seconds, first send to last arrival over all phases but the warm-up
    cancelled: bool
    profile: dict[str, Any]  # the frozen configuration, by option name, without secrets
    environment: dict[str, Any]  # versions, host's cores, revision of the tree
    server: dict[str, Any]  # model id and what /metrics or /stats said before and after, where it answers
    health: ClientHealth
    rate_changes: list[RateChange]
    summary: dict[str, Any]  # see metrics.summarise
    records: list[RequestRecord]
    server_samples: list[ServerSample] = []  # once a second, where it has /metrics that are known
