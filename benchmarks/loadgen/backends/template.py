"""Any other server that takes JSON: a body with placeholders, headers, and the path to the text in an answer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.loadgen.backends.base import HttpBackend, merge
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


class Template(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A template file. A path is names and list positions with dots between them: `choices.0.text`.

    In `body`, a value that is one of `$prompt`, `$token_ids`, `$messages`, `$suffix`, `$max_tokens`, `$model`,
    `$stream` and `$session` becomes that value, and its field is left out where the request has none; `$prompt`,
    `$model` and `$session` are also replaced within longer strings.
    """

    endpoint: str
    body: dict[str, Any]
    text: str
    headers: dict[str, str] = {}
    output_tokens: str | None = None  # the server's count so far
    prompt_tokens: str | None = None
    finish_reason: str | None = None
    cumulative: bool = False  # every event repeats the text from its beginning


@dataclass(kw_only=True)
class TemplateBackend(HttpBackend):
    template: Template
    says_end: bool = field(default=False)

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        values = {
            "$prompt": prompt.text,
            "$token_ids": prompt.token_ids,
            "$messages": prompt.messages,
            "$suffix": prompt.suffix,
            "$max_tokens": prompt.output_tokens,
            "$model": options.model or None,
            "$stream": options.stream,
            "$session": prompt.session,
        }
        if not any(values[name] is not None and _mentions(self.template.body, name) for name in CONTENT):
            raise ValueError("prompt: the template has no placeholder for what the data set gives")
        return merge(_filled(self.template.body, values), options.sampling, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        text = find(data, self.template.text) or ""
        if self.template.cumulative:
            reply.content_so_far(text)
        else:
            reply.content(text)
        if (total := find(data, self.template.output_tokens)) is not None:
            reply.total(total)
        reply.usage(input=find(data, self.template.prompt_tokens))
        reply.finish(find(data, self.template.finish_reason))


CONTENT = ("$prompt", "$token_ids", "$messages")


def load_template(path: str | Path) -> TemplateBackend:
    """Raises OSError, or ValueError that names the file, for one that is no template."""
    try:
        template = msgspec.json.decode(Path(path).read_bytes(), type=Template)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    says_end = template.finish_reason is not None
    return TemplateBackend(
        name="template",
        default_endpoint=template.endpoint,
        headers=template.headers,
        says_end=says_end,
        template=template,
    )


def find(data: Any, path: str | None) -> Any:
    """What is at `path`, or None: an event need not have every field."""
    if path is None:
        return None
    for name in path.split("."):
        if isinstance(data, dict):
            data = data.get(name)
        elif isinstance(data, list) and name.isdigit() and int(name) < len(data):
            data = data[int(name)]
        else:
            return None
    return data


def _filled(node: Any, values: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        pairs = ((name, _filled(value, values)) for name, value in node.items())
        return {name: value for name, value in pairs if value is not None}
    if isinstance(node, list):
        return [_filled(item, values) for item in node]
    if not isinstance(node, str):
        return node
    if node in values:
        return values[node]
    for name in ("$prompt", "$model", "$session"):
        node = node.replace(name, values[name] or "")
    return node


def _mentions(node: Any, name: str) -> bool:
    if isinstance(node, dict):
        return any(_mentions(value, name) for value in node.values())
    if isinstance(node, list):
        return any(_mentions(item, name) for item in node)
    return isinstance(node, str) and name in node
