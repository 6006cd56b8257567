"""Tools: the prompt, the calls in a text, and both through the official client."""

import json

import jsonschema
import pytest

from inference.api.edge.errors import InvalidRequest
from inference.api.generating.prompts import EarlierCall, EarlierFunction, Message, render_chat, think_style
from inference.api.generating.tools import FunctionName, FunctionSpec, NamedTool, Tool, ToolCallParser, chosen_tools

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
PARAMETERS = {
    "$defs": {"unit": {"enum": ["C", "F"]}},
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": PARAMETERS}}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TIME = {"type": "function", "function": {"name": 'the "time"', "parameters": NOTHING}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}\n</tool_call>'


def check_call(call) -> None:
    assert call.id.startswith("call_")
    assert call.type == "function"
    if call.function.name == "weather":
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    else:
        assert call.function.name == 'the "time"'
        assert json.loads(call.function.arguments) == {}


def test_a_required_call(sdk):
    body = {"model": "rwkv7", "messages": HI, "tools": [WEATHER, TIME], "max_tokens": 600, "seed": 3}
    reply = sdk.chat.completions.create(tool_choice="required", parallel_tool_calls=False, n=5, **body)
    for choice in reply.choices:
        (call,) = choice.message.tool_calls
        check_call(call)
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls"
    assert len({choice.message.tool_calls[0].id for choice in reply.choices}) == 5


def test_a_named_tool_is_the_one_that_is_called(sdk):
    choice = {"type": "function", "function": {"name": "weather"}}
    body = {"model": "rwkv7", "messages": HI, "tools": [TIME, WEATHER], "tool_choice": choice, "seed": 1}
    reply = sdk.chat.completions.create(max_tokens=600, **body)
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "weather"
    with sdk.chat.completions.create(max_tokens=600, stream=True, **body) as stream:
        deltas = [chunk.choices[0] for chunk in stream]
    (streamed,) = [delta.delta.tool_calls[0] for delta in deltas if delta.delta.tool_calls]
    assert (streamed.index, streamed.function.arguments) == (0, call.function.arguments)
    check_call(streamed)
    assert deltas[-1].finish_reason == "tool_calls"
    assert not any(delta.delta.content for delta in deltas)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_found_in_free_text(api, stream):
    """The model is made to say something before it calls two tools."""
    body = {
        "messages": HI,
        "tools": [WEATHER],
        "max_tokens": 300,
        "structured_outputs": {"choice": [f"Wait {CALL}\n{CALL}"]},
    }
    first = api.post("/tokenize", {"prompt": "Wait"}).reply["tokens"][0]
    body |= {"logit_bias": {str(first): 100}, "temperature": 0, "stream": stream}
    answer = api.post(PATH, body)
    if stream:
        deltas = [frame["choices"][0]["delta"] for frame in answer.frames]
        content = "".join(delta.get("content", "") for delta in deltas)
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert [call["index"] for call in calls] == [0, 1]
        finish = answer.frames[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = answer.reply["choices"]
        content, calls, finish = choice["message"]["content"], choice["message"]["tool_calls"], choice["finish_reason"]
    assert content == "Wait"
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Rome", "unit": "C"}] * 2
    assert finish == "tool_calls"


def test_without_a_choice_of_tools_the_text_is_left_alone(api):
    body = {"messages": HI, "max_tokens": 300, "guided_choice": [CALL], "tools": [WEATHER], "tool_choice": "none"}
    message = api.post(PATH, body).reply["choices"][0]["message"]
    assert message["content"] == CALL
    assert "tool_calls" not in message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "search", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "x"}}}], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": "any"}, "tool_choice"),
    ],
)
def test_bad_tools_are_refused_by_name(api, more, param):
    answer = api.post(PATH, {"messages": HI} | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


# -- the prompt ---------------------------------------------------------------------------------


def test_tools_and_their_results_in_a_prompt():
    call = EarlierCall(EarlierFunction("weather", '{"city": "Rome"}'), "call_1")
    prompt = render_chat(
        [
            Message("system", "Be brief."),
            Message("user", "Where is it warm?"),
            Message("assistant", None, [call, EarlierCall(EarlierFunction("odd", "no json"))]),
            Message("tool", "30 C"),
            Message("tool", "an\n\nerror"),
            Message("assistant", "In Rome."),
            Message("user", "Thanks"),
        ],
        style=think_style("none", None, None),
        tools=[Tool(FunctionSpec("weather", "Now.", {"type": "object"}))],
    )
    system, *turns = prompt.text.split("\n\n")
    assert system.startswith("System: Be brief.\n")
    assert (
        '\n<tools>\n{"name": "weather", "description": "Now.", "parameters": {"type": "object"}}\n</tools>\n' in system
    )
    assert '{"name": "the function\'s name", "arguments": {' in system
    assert turns == [
        "User: Where is it warm?",
        'Assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "odd", "arguments": "no json"}\n</tool_call>',
        "User: <tool_response>\n30 C\n</tool_response>\n<tool_response>\nan\nerror\n</tool_response>",
        "Assistant: In Rome.",
        "User: Thanks",
        "Assistant:",
    ]


def test_which_tools_a_choice_leaves():
    tools = [Tool(FunctionSpec("a")), Tool(FunctionSpec("b"))]
    assert chosen_tools(tools, None) == chosen_tools(tools, "auto") == chosen_tools(tools, "required") == tools
    assert chosen_tools(tools, "none") == chosen_tools(None, "none") == []
    assert chosen_tools(tools, NamedTool(FunctionName("b"))) == tools[1:]
    with pytest.raises(InvalidRequest, match="tool_choice"):
        chosen_tools(tools, NamedTool(FunctionName("c")))


# -- the parser ---------------------------------------------------------------------------------


def parsed(*pieces: str) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser()
    content, calls = "", []
    for piece in pieces:
        text, found = parser.push(piece)
        content, calls = content + text, calls + found
    text, found = parser.finish()
    return content + text, [(call.function.name, call.function.arguments) for call in calls + found]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello", "Hello", []),
        ("a < b, <tool", "a < b, <tool", []),
        ("ends with a blank \n", "ends with a blank \n", []),
        (f"Wait.\n{CALL}", "Wait.", [("weather", '{"city": "Rome", "unit": "C"}')]),
        (f"{CALL}\n{CALL}\n", "", [("weather", '{"city": "Rome", "unit": "C"}')] * 2),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>\n{"name": "f", "arguments": {"ü": 1}}', "", [("f", '{"ü": 1}')]),
        ("<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
        ("<tool_call>[1]</tool_call> x", "<tool_call>[1]</tool_call> x", []),
        ('<tool_call>{"name": "f"', '<tool_call>{"name": "f"', []),
    ],
)
def test_calls_in_a_text_however_it_is_cut(text, content, calls):
    assert parsed(text) == (content, calls)
    assert parsed(*text) == (content, calls)
    assert parsed(*[text[at : at + 3] for at in range(0, len(text), 3)]) == (content, calls)
