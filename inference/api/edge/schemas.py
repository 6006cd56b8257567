"""The JSON bodies of requests: how they are read, and the fields that the generating endpoints share.

A body may name far more fields than a server knows, so unknown ones are ignored, `null` means "not
given", and "0.8" is taken for 0.8. A value that cannot be used is refused by the field's name.
"""

import json
import math
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from inference.api.edge.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

MAX_NUMBER = 2**31 - 1  # of what is only counted: the messages to the engines cannot hold every integer
MAX_TOKEN_ID = 65535
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 64
MAX_BIASES = 1024

NO_NUL = r"^[^\x00]*$"  # what reaches the database: PostgreSQL stores every character but this one

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
StopText = Annotated[str, Meta(max_length=1024)]
Share = Annotated[float, Meta(ge=0, le=1)]
NativePenalty = Annotated[float, Meta(ge=-1e6, le=1e6)]
OpenAIPenalty = Annotated[float, Meta(ge=-2, le=2)]

MetadataName = Annotated[str, Meta(max_length=64, pattern=NO_NUL)]
MetadataText = Annotated[str, Meta(max_length=512, pattern=NO_NUL)]
Metadata = Annotated[dict[MetadataName, MetadataText], Meta(max_length=16)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """What every generating endpoint takes: OpenAI's fields, vLLM's additions, and the native ones."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: Share | None = None
    presence_penalty: OpenAIPenalty | None = None
    frequency_penalty: OpenAIPenalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.001, le=1000)] | None = None
    alpha_presence: NativePenalty | None = None
    alpha_frequency: NativePenalty | None = None
    alpha_decay: Share | None = None
    logit_bias: (
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None
    ) = None
    seed: int | None = None
    stop: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | StopText | None = None
    stop_tokens: Annotated[list[TokenId | StopText], Meta(max_length=MAX_STOPS)] | TokenId | StopText | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    include_stop_str_in_output: bool | None = None
    chunk_size: Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None = None
    stream: bool | None = None
    state_id: str | None = None  # an uploaded state to begin with; read for every route in one place
    password: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIFields(SamplingFields, kw_only=True):
    """What /v1/completions and chat on messages share beyond the sampling."""

    top_p: Share | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class Payload:
    """A request's body: read once, and checked against a schema when its endpoint asks."""

    def __init__(self, body: bytes) -> None:
        self._error: InvalidRequest | None = None
        self.data: Any = None
        try:
            self.data = _decode_json(body)
        except (ValueError, RecursionError) as error:
            self._error = InvalidRequest(f"Invalid JSON: {error}")

    def field(self, name: str) -> Any:
        """A field's raw value, None when it is absent or the body is not an object."""
        return self.data.get(name) if isinstance(self.data, dict) else None

    def read(self, schema: type[T]) -> T:
        """The body as `schema`. Raises InvalidRequest, which names the first bad field."""
        if self._error:
            raise self._error
        try:
            values = msgspec.convert(self.data, schema, strict=False)
        except msgspec.ValidationError as error:
            raise _named(error) from error
        for name in values.__struct_fields__:
            value = getattr(values, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidRequest(f"{name}: expected a finite number", param=name)
        return values


def _decode_json(body: bytes) -> Any:
    """Raises ValueError or RecursionError.

    Python clients write NaN and Infinity, which JSON does not have. They are let through here, so
    that the complaint can name the field.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError:
        data = json.loads(body)
        msgspec.json.encode(data)  # refuses half a surrogate pair, which is not text
        return data


_PLAIN_TYPES = {
    "float": "a number",
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _named(error: msgspec.ValidationError) -> InvalidRequest:
    """msgspec's "Expected `int` >= 1 - at `$.n`" as "n: expected an integer >= 1"."""
    problem, _, place = str(error).partition(" - at ")
    path = re.search(r"\$\.?([^`]*)", place)
    name = path.group(1) if path else ""
    missing = re.fullmatch(r"Object missing required field `(.*)`", problem)
    if missing:
        name, problem = f"{name}.{missing.group(1)}".removeprefix("."), "missing"
    problem = re.sub(r"`([^`]*)`", lambda match: _plain_type(match.group(1)), problem)
    problem = problem[:1].lower() + problem[1:]
    return InvalidRequest(f"{name or 'body'}: {problem}", param=name or None)


def _plain_type(name: str) -> str:
    return " or ".join(_PLAIN_TYPES.get(part, part) for part in name.split(" | "))
