"""The objects of the Responses API, as its clients expect them."""

import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.schemas import Metadata, SamplingFields, Share
from inference.api.generating.prompts import SYSTEM_ROLES, Message
from inference.api.openai.chat_request import ChatFields

TEXT_PARTS = ("input_text", "output_text", "text")


class TextConfig(msgspec.Struct):
    format: dict[str, Any] | None = None


class ReasoningConfig(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ResponseBody(SamplingFields, kw_only=True):
    top_p: Share | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[Any] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    user: str | None = None

    def chat_fields(self) -> ChatFields:
        """What a chat's body would say."""
        shared = {name: getattr(self, name) for name in SamplingFields.__struct_fields__}
        shared["max_tokens"] = self.max_output_tokens or self.max_tokens
        return ChatFields(
            **shared,
            response_format=self.text.format if self.text else None,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
        )

    def in_its_words(self, error: InvalidRequest) -> InvalidRequest:
        """What is wrong with the chat's body, said of the field that this body has for it."""
        names = {"messages": "input", "response_format": "text.format"}
        if self.max_output_tokens:
            names["max_tokens"] = "max_output_tokens"
        name = names.get(error.param or "")
        if not name:
            return error
        return InvalidRequest(error.message.replace(f"{error.param}:", f"{name}:", 1), param=name, code=error.code)


class OutputPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class OutputItem(msgspec.Struct, kw_only=True):
    """A `message`, or the `reasoning` before it."""

    type: Literal["message", "reasoning"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    summary: list[Any] | msgspec.UnsetType = msgspec.UNSET
    content: list[OutputPart]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class InputDetails(msgspec.Struct):
    cached_tokens: int


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    background: Literal[False] = False
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None
    reasoning: ReasoningConfig
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str = "auto"
    tools: list[Any] = []
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class DeletedResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def new_response(body: ResponseBody, model: str) -> ResponseObject:
    text_format = (body.text and body.text.format) or {"type": "text"}
    return ResponseObject(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=model,
        previous_response_id=body.previous_response_id,
        reasoning=body.reasoning or ReasoningConfig(),
        store=body.store is not False,
        temperature=body.temperature,
        text={"format": text_format},
        top_p=body.top_p,
        user=body.user,
        metadata=body.metadata or {},
    )


def new_item(kind: Literal["message", "reasoning"]) -> OutputItem:
    """An item without text yet."""
    if kind == "message":
        part = OutputPart(type="output_text", text="", annotations=[], logprobs=[])
        return OutputItem(type=kind, id=f"msg_{uuid.uuid4().hex}", role="assistant", content=[part])
    part = OutputPart(type="reasoning_text", text="")
    return OutputItem(type=kind, id=f"rs_{uuid.uuid4().hex}", summary=[], content=[part])


def read_input(given: str | list[dict[str, Any]] | None) -> list[Message]:
    """The new turns of a conversation. Raises InvalidRequest."""
    if isinstance(given, str):
        return [Message("user", given)]
    if not given:
        raise InvalidRequest("input: expected a string, or a list of items", param="input")
    return [message for place, item in enumerate(given) if (message := _read_item(place, item))]


def _read_item(place: int, item: dict[str, Any]) -> Message | None:
    kind = item.get("type", "message")
    if kind == "reasoning":  # earlier thoughts are no part of a prompt
        return None
    role, content = item.get("role"), item.get("content")
    if kind != "message" or role not in ("user", "assistant", *SYSTEM_ROLES):
        raise InvalidRequest(f"input[{place}]: expected a message of a user, an assistant or the system", param="input")
    if isinstance(content, list):
        return Message(role, "".join([_read_part(place, part) for part in content]))
    if not isinstance(content, str):
        raise InvalidRequest(f"input[{place}].content: expected text", param="input")
    return Message(role, content)


def _read_part(place: int, part: Any) -> str:
    match part:
        case {"type": kind, "text": str(text)} if kind in TEXT_PARTS:
            return text
    raise InvalidRequest(f"input[{place}].content: only text parts are supported", param="input")
