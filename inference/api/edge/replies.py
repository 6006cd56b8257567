"""The bodies of plain (not streamed) replies, in the order their fields are written."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.bus.messages import EngineStatus

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct):
    error: ErrorDetail | str  # a plain string on native routes


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET  # only of a chat that thinks


class TopLogprob(msgspec.Struct):
    """One candidate. `bytes` are exact; `token` is their text, or an escape where they are not text."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str  # JSON


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, kw_only=True):
    """`content` is null beside `tool_calls` alone; `reasoning_content` is there when the chat thinks."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(msgspec.Struct):
    """Four lists of one entry for each token; `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class TextCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage


class BatchMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class BatchChoice(msgspec.Struct):
    index: int
    message: BatchMessage
    finish_reason: FinishReason


class BatchCompletion(msgspec.Struct, kw_only=True):
    """The native routes' reply: one choice for each prompt."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[BatchChoice]
    usage: Usage


class Model(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "rwkv"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[Any] = []
    description: str | None = None
    status: Literal["loaded"] = "loaded"  # the C++ server's; what could be loaded instead is in `available`


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]
    loaded: str | None = None
    available: list[str] = []  # ids that /v1/model/load takes


class Health(msgspec.Struct):
    status: Literal["ok", "loading", "unavailable"]
    engines: int
    models: list[str]


class Stats(msgspec.Struct):
    running: int
    waiting: int
    slots: int
    prompt_tokens: int
    generated_tokens: int
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    cached_tokens: int  # tokens of prompts that the prefix cache spared
    prefix_hit_rate: float  # their share of all prompts
    state_hits: int  # turns whose session's state was in memory
    state_loads: int  # turns whose session's state came from the database
    engines: list[EngineStatus]


class Index(msgspec.Struct, kw_only=True):
    name: str = "RWKV server"
    models: list[str]
    docs: str = "/docs/"
    schema: str = "/schema/"
    health: str = "/health"
    admin: str = "/admin/"
