"""From a chat's body to the rows that answer it."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.replies import ReasoningTokens, Usage
from inference.api.edge.schemas import MAX_TOP_LOGPROBS
from inference.api.generating.limits import check_rows, encode_prompts, new_tokens
from inference.api.generating.message_parts import MessageParser
from inference.api.generating.prompts import PLAIN_STYLE, Message, ThinkStyle, render_chat, think_style
from inference.api.generating.reasoning import Thinking
from inference.api.generating.sampling import CHAT, build_sampling, collect_stops
from inference.api.generating.structured import StructuredFields, check_grammar, grammar_text, read_constraint
from inference.api.generating.tools import Tool, call_rule
from inference.api.generating.usage import count_usage
from inference.api.rows.generation import Generation
from inference.api.rows.request import GenerationRequest, Row, initial_state
from inference.bus.messages import END_OF_TEXT, ModelInfo

NO_REASONING = ("none", "minimal")  # of reasoning_effort

# A grammar says by itself where the text ends, and penalties would keep quotes and braces out of it.
STRUCTURED_CHAT = replace(CHAT, presence=0.0, frequency=0.0, stops=())


class ChatFields(StructuredFields, kw_only=True):
    """What every chat takes, whatever form its messages have."""

    system: str | None = None
    enable_think: bool | None = None
    think: bool | None = None
    think_type: str | None = None
    force_reasoning: bool | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None  # false: thoughts stay part of the content
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools a model may call in one chat, and whether it has to."""

    tools: Sequence[Tool] = ()
    required: bool = False
    several: bool = True


NO_TOOLS = ToolUse()


@dataclass(frozen=True, slots=True)
class Chat:
    """The rows of a chat, and how their text is to be read."""

    request: GenerationRequest
    choices_per_prompt: int
    thinking: Thinking
    finds_calls: bool

    @property
    def shows_reasoning(self) -> bool:
        return self.thinking in (Thinking.BEGINNING, Thinking.BEGUN)

    def parsers(self) -> list[MessageParser] | None:
        """One for each row; None where a row's text is its message."""
        if self.thinking is Thinking.NONE and not self.finds_calls:
            return None
        return [MessageParser(self.thinking, finds_calls=self.finds_calls) for _ in self.request.rows]

    def usage(self, generation: Generation, parsers: list[MessageParser] | None) -> Usage:
        usage = count_usage(generation, self.choices_per_prompt)
        if parsers and self.shows_reasoning:
            usage.completion_tokens_details = ReasoningTokens(sum(parser.reasoning_tokens for parser in parsers))
        return usage


def new_chat_id() -> str:
    """Also the id under which the request can be stopped and paused."""
    return f"chatcmpl-{uuid.uuid4().hex[:24]}"


async def build_chat(
    body: ChatFields,
    conversations: Sequence[Sequence[Message]],
    model: ModelInfo,
    request_id: str,
    tool_use: ToolUse = NO_TOOLS,
    *,
    continued: bool = False,
    before: str = "",
) -> Chat:
    """`n` rows for each conversation. Raises InvalidRequest.

    With `continued`, the model knows the system's texts and the tools already; `before` goes in front.
    """
    check_chat_fields(body)
    style = _style(body)
    n = body.n or 1
    check_rows(n * len(conversations), "n" if len(conversations) == 1 else "messages")
    prompts = [
        render_chat(
            messages,
            system=None if continued else body.system,
            style=style,
            force_reasoning=bool(body.force_reasoning),
            tools=() if continued else tool_use.tools,
        )
        for messages in conversations
    ]
    grammar = await _grammar(body, style.thinking, tool_use)
    defaults = STRUCTURED_CHAT if grammar else CHAT
    stops = collect_stops(body, defaults)
    rows = [
        Row(prompt=ids, sampling=build_sampling(body, defaults, index * n + choice, prompt.bans))
        for index, (prompt, ids) in enumerate(
            zip(prompts, encode_prompts([before + prompt.text for prompt in prompts], "messages"), strict=True)
        )
        for choice in range(n)
    ]
    request = GenerationRequest(
        rows=rows,
        model=model.id,
        endpoint="chat.completions",
        request_id=request_id,
        max_tokens=new_tokens(body, defaults),
        stop_ids=sorted({*stops.ids, END_OF_TEXT}) if grammar else stops.ids,
        stop_strings=stops.texts,
        include_stop=bool(body.include_stop_str_in_output),
        logprobs=(body.top_logprobs or 0) if body.logprobs else -1,
        grammar=grammar,
        chunk_size=body.chunk_size,
    )
    thinking = Thinking.NONE if body.separate_reasoning is False else style.thinking
    return Chat(request, n, thinking, bool(tool_use.tools))


def check_chat_fields(body: ChatFields) -> None:
    """Normalise the two names of the token limit, and refuse what contradicts itself."""
    if body.max_completion_tokens is not None:
        body.max_tokens = body.max_completion_tokens
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs", param="top_logprobs")
    if body.stream_options and not body.stream:
        raise InvalidRequest("stream_options: needs stream", param="stream_options")


def _style(body: ChatFields) -> ThinkStyle:
    enabled = body.enable_think
    if enabled is None and body.reasoning_effort:
        enabled = body.reasoning_effort not in NO_REASONING
    if initial_state.get() and (body.think_type, body.think, enabled) == (None, None, None):
        return PLAIN_STYLE  # states are tuned on chats without any thoughts
    return think_style(body.think_type, body.think, enabled)


async def _grammar(body: ChatFields, thinking: Thinking, tool_use: ToolUse) -> str:
    """What the text must follow, "" where it is free. Raises InvalidRequest."""
    constraint = read_constraint(body)
    if tool_use.required:
        rule, rules = call_rule(tool_use.tools, several=tool_use.several)
        param = "tools"
    elif not constraint:
        return ""
    elif tool_use.tools:
        calls, rules = call_rule(tool_use.tools, several=tool_use.several)
        rule, rules = "text | calls", f"text: {constraint.rule}\ncalls: {calls}\n{rules}"
        param = constraint.param
    else:
        rule, rules, param = constraint.rule, "", constraint.param
    grammar = grammar_text(rule, thinking, rules)
    await check_grammar(grammar, param)
    return grammar
