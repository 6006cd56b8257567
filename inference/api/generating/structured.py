"""Structured output: what of a request's body constrains the text, as a grammar.

OpenAI's `response_format`, and vLLM's `guided_*` and `structured_outputs`. Each becomes the right-hand
side of a rule in the notation of `inference.grammars`; JSON schemas are part of that notation.
"""

import asyncio
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.schemas import OpenAIFields
from inference.api.generating.reasoning import THINKING_END, Thinking
from inference.grammars import GrammarCompiler, GrammarError
from inference.text.tokenizer import get_tokenizer

# Between the parts of a JSON text. Without a limit, a model that likes blanks may go on with them for ever.
JSON_BLANKS = r"\n? {0,16}"
MAX_CHOICES = 1024

Schema = dict[str, Any]
Choices = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES)]


class StructuredOutputs(msgspec.Struct):
    json: Schema | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    json_object: bool | None = None


class StructuredFields(OpenAIFields, kw_only=True):
    response_format: Schema | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """`rule` is the right-hand side of a grammar's rule; `param` the field that asked for it."""

    rule: str
    param: str


def read_constraint(body: StructuredFields) -> Constraint | None:
    """The one constraint that a body asks for, if any. Raises InvalidRequest."""
    outputs = body.structured_outputs or StructuredOutputs()
    asked = [
        ("response_format", _response_format_rule, body.response_format),
        ("guided_json", json_rule, body.guided_json),
        ("guided_regex", _regex_rule, body.guided_regex),
        ("guided_choice", _choice_rule, body.guided_choice),
        ("structured_outputs", json_rule, outputs.json),
        ("structured_outputs", _regex_rule, outputs.regex),
        ("structured_outputs", _choice_rule, outputs.choice),
        ("structured_outputs", json_rule, {"type": "object"} if outputs.json_object else None),
    ]
    rules = [(param, make(value, param)) for param, make, value in asked if value is not None]
    found = [Constraint(rule, param) for param, rule in rules if rule]
    if len(found) > 1:
        raise InvalidRequest(f"{found[1].param}: cannot be combined with {found[0].param}", param=found[1].param)
    return found[0] if found else None


def json_rule(schema: Any, param: str) -> str:
    """JSON by a schema, which may be given as text. Raises InvalidRequest if it is no object."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"{param}: the schema is not JSON: {error}", param=param) from error
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param}: expected a JSON schema, which is an object", param=param)
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': JSON_BLANKS}})}"


def _response_format_rule(form: dict[str, Any], param: str) -> str:
    match form:
        case {"type": "text"}:
            return ""
        case {"type": "json_object"}:
            return json_rule({"type": "object"}, param)
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"type": "json_schema", "schema": schema}:
            return json_rule(schema, param)
        case {"type": "json_schema"}:
            raise InvalidRequest("response_format: json_schema needs a schema", param=param)
    raise InvalidRequest("response_format: expected the type text, json_object or json_schema", param=param)


def _regex_rule(regex: str, param: str) -> str:
    """The whole text matches the regular expression (Rust's dialect: no look-around, no back-references)."""
    escaped = re.sub(
        r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), regex, flags=re.DOTALL
    )
    return f"/{escaped}/"


def _choice_rule(choices: list[str], param: str) -> str:
    return " | ".join(json.dumps(choice) for choice in choices)


def grammar_text(rule: str, thinking: Thinking, rules: str = "") -> str:
    """A grammar whose text is `rule`, behind what the prompt leaves of the thinking. `rules` are further ones."""
    grammar = {
        Thinking.NONE: f"start: {rule}\n",
        Thinking.ENDING: f'start: ">" BREAK answer\nanswer: {rule}\n{_BREAK}',
    }
    return grammar.get(thinking, f"start: thoughts BREAK answer\n{_THOUGHTS}answer: {rule}\n{_BREAK}") + rules


_BREAK = "BREAK: /\\n{0,2}/\n"
_THOUGHTS = f'thoughts[suffix="{THINKING_END}"]: /(?s:.*)/\n'


async def check_grammar(grammar: str, param: str) -> None:
    """Raises InvalidRequest, naming `param`, if the grammar cannot be used."""
    try:
        await asyncio.to_thread(_compiler().compile, grammar)
    except GrammarError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: get_tokenizer().table)
