"""Calling tools: how they are shown to a model, and how its calls are found in its text.

A model writes a call as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. In a conversation
the results come back as `<tool_response>` in the user's next turn.
"""

import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.replies import CalledFunction, ToolCall
from inference.api.generating.reasoning import held_back
from inference.api.generating.structured import json_rule

MAX_TOOLS = 128
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"

INSTRUCTIONS = """\
You can call these functions. Each is described by a JSON object with its parameters as a JSON schema:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and its arguments between tags, like this:
<tool_call>
{{"name": "the function's name", "arguments": {{"the parameter's name": "its value"}}}}
</tool_call>
The results are given to you as <tool_response>."""


class FunctionSpec(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    function: FunctionSpec
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct):
    function: FunctionName
    type: Literal["function"] = "function"


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def chosen_tools(tools: list[Tool] | None, choice: ToolChoice | None) -> list[Tool]:
    """The tools that the model may call. Raises InvalidRequest when the choice names none of them."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: needs tools", param="tool_choice")
        return []
    if choice == "none":
        return []
    if isinstance(choice, NamedTool):
        named = [tool for tool in tools if tool.function.name == choice.function.name]
        if not named:
            raise InvalidRequest(f"tool_choice: there is no tool {choice.function.name!r}", param="tool_choice")
        return named
    return tools


def describe_tools(tools: Sequence[Tool]) -> str:
    """The system text that makes the tools known."""
    lines = [json.dumps(_description(tool.function), ensure_ascii=False) for tool in tools]
    return INSTRUCTIONS.format(tools="\n".join(lines))


def call_text(name: str, arguments: str) -> str:
    """An earlier call, as the model had written it."""
    try:
        values = json.loads(arguments)
    except ValueError:  # what a model once wrote need not be JSON
        values = arguments
    return f"{CALL_BEGIN}\n{json.dumps({'name': name, 'arguments': values}, ensure_ascii=False)}\n{CALL_END}"


def response_text(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"


def call_rule(tools: Sequence[Tool], *, several: bool) -> tuple[str, str]:
    """The right-hand side of a grammar's rule for at least one call, and the further rules that it needs."""
    rules = [_tool_rules(number, tool.function) for number, tool in enumerate(tools)]
    call = " | ".join(f"call_{number}" for number in range(len(tools)))
    return 'call ("\\n" call)*' if several else "call", "".join([f"call: {call}\n", *rules])


def _tool_rules(number: int, function: FunctionSpec) -> str:
    """Each tool's parameters are a schema of their own, so that references in them find their definitions."""
    name = json.dumps(function.name, ensure_ascii=False)
    before = json.dumps(f'{CALL_BEGIN}\n{{"name": {name}, "arguments": ')
    after = json.dumps(f"}}\n{CALL_END}")
    schema = json_rule(function.parameters or {"type": "object"}, "tools")
    return f"call_{number}: {before} arguments_{number} {after}\narguments_{number}: {schema}\n"


class ToolCallParser:
    """Finds the calls in one choice's text, piece by piece. What is no call is content."""

    def __init__(self) -> None:
        self.found = False
        self._held = ""
        self._in_call = False

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """The new content, and the calls that are complete now."""
        self._held += text
        content, calls = "", []
        while True:
            before, tag, after = self._held.partition(CALL_END if self._in_call else CALL_BEGIN)
            if not tag:
                break
            if self._in_call:
                call = read_call(before)
                if call:
                    calls.append(call)
                else:
                    content += CALL_BEGIN + before + CALL_END
            else:
                content += before.rstrip()
            self._held, self._in_call = after, not self._in_call
        if not self._in_call:
            ready = len(self._held) - held_back(self._held, CALL_BEGIN)
            content, self._held = content + self._held[:ready], self._held[ready:]
        self.found = self.found or bool(calls)
        return content, calls

    def finish(self) -> tuple[str, list[ToolCall]]:
        """What was held back. A call whose closing tag was cut off, or is the stop string, still is one."""
        held, self._held = self._held, ""
        if not self._in_call:
            return ("" if self.found else held), []
        call = read_call(held)
        self.found = self.found or bool(call)
        return ("", [call]) if call else (CALL_BEGIN + held, [])


def read_call(text: str) -> ToolCall | None:
    """None if `text` is no JSON object with a name."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(f"call_{uuid.uuid4().hex[:24]}", CalledFunction(call["name"], written))


def _description(function: FunctionSpec) -> dict[str, Any]:
    known = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {name: value for name, value in known.items() if value is not None}
