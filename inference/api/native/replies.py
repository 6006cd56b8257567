"""The bodies of the native routes' plain replies, beside the batch's own (see `inference.api.edge.replies`)."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.api.edge.replies import BatchCompletion


class Healthz(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    model: str


class TokenCount(msgspec.Struct):
    tokens: int


class Translation(msgspec.Struct):
    detected_source_lang: str
    text: str


class Translations(msgspec.Struct):
    translations: list[Translation]


class Capabilities(msgspec.Struct):
    chat_messages: bool = True
    completion: bool = True
    batch_completion: bool = True
    stream: bool = True
    stop: bool = True
    token_count: bool = True
    metrics: bool = True
    session_cache: bool = True
    pause_resume: bool = True
    think_type: bool = True
    concurrent_generation: bool = True
    chunk_prefill: bool = True


class ServedModel(msgspec.Struct):
    """`path` is the id again: clients want the key, and where the file lies is nobody's business."""

    id: str
    name: str
    path: str


class PrefillQueue(msgspec.Struct, kw_only=True):
    """In rows, and none are reserved. Bytes are those of the devices, or of the machines where engines run on CPUs.

    What an engine cannot find out is 0. `bytes_per_bsz` is what the state of one row takes.
    """

    hard_max_bsz: int
    dynamic_max_bsz: int
    reserved_bsz: int = 0
    available_bsz: int
    queued_requests: int
    free_vram_bytes: int
    total_vram_bytes: int
    reserve_vram_bytes: int = 0
    bytes_per_bsz: int


class RequestStatus(msgspec.Struct, kw_only=True):
    """A running request. Token counts are sums over its rows; speeds are tokens/s since it was made."""

    id: str
    endpoint: str
    model: str
    created: int
    finished: int | None = None  # Unix seconds; null while it runs
    prompt_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    max_tokens: int
    stop_requested: bool = False
    pause_requested: bool = False
    prefill_progress: float
    prefill_speed: float
    decode_speed: float
    state_key: str | UnsetType = UNSET  # of a session's turn: the session's id


class PausedStatus(msgspec.Struct):
    id: str
    endpoint: str
    model: str
    created: int
    generated_tokens: int


class ServerStatus(msgspec.Struct, kw_only=True):
    status: Literal["running"] = "running"
    api_version: str = "1.0"
    engine_version: str
    model: ServedModel | None
    capabilities: Capabilities
    prefill_chunk_size: int
    prefill_queue: PrefillQueue
    active_request: RequestStatus | None
    active_requests: list[RequestStatus]
    last_request: RequestStatus | None = None
    paused_requests: list[PausedStatus]


class Stopped(msgspec.Struct):
    ok: bool
    stopped: bool
    active_request: RequestStatus | None


class Paused(msgspec.Struct):
    ok: bool
    paused: bool
    request_id: str
    active_request: RequestStatus | None


class LoadedModel(msgspec.Struct, kw_only=True):
    object: Literal["model"] = "model"
    id: str
    loaded: bool = True


class SessionItem(msgspec.Struct):
    session_id: str
    cache_level: str
    last_updated: str
    timestamp: float  # of its last use


class SessionList(msgspec.Struct, kw_only=True):
    status: Literal["success"] = "success"
    total_sessions: int
    l1_cache_count: int
    l2_cache_count: int
    database_count: int  # those that are only there
    sessions: list[SessionItem]


class SessionDeletion(msgspec.Struct):
    status: Literal["success", "not_found"]
    message: str


class BranchCompletion(BatchCompletion, kw_only=True):
    dialogue_idx: int


class BranchFrame(msgspec.Struct, kw_only=True):
    """The last frame of a stream that made a branch."""

    object: Literal["multi_state.dialogue_idx"] = "multi_state.dialogue_idx"
    session_id: str  # the key of the branch
    dialogue_idx: int
