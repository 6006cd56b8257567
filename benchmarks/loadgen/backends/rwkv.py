"""The native routes of RWKV servers: raw prompts in a list, answered by one stream that carries them all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.loadgen.backends.base import merge, text_of
from benchmarks.loadgen.backends.openai import OpenAIBackend
from benchmarks.loadgen.exchange import Prompt, RequestOptions


def contents(prompt: Prompt, backend: str) -> dict[str, Any]:
    return {"contents": [text_of(prompt, backend)]}


def messages_or_contents(prompt: Prompt, backend: str) -> dict[str, Any]:
    return contents(prompt, backend) if prompt.messages is None else {"messages": prompt.messages}


def fill_in(prompt: Prompt, backend: str) -> dict[str, Any]:
    return {"prefix": [text_of(prompt, backend)], "suffix": [prompt.suffix or ""]}


def state_turn(prompt: Prompt, backend: str) -> dict[str, Any]:
    """Without a session the server keeps nothing."""
    return {**contents(prompt, backend), "session_id": prompt.session}


@dataclass(kw_only=True)
class NativeBackend(OpenAIBackend):
    """`extra_body` may hold a longer list of prompts (`contents`): each is then a stream of its own in the record."""

    prompt_fields: Callable[[Prompt, str], Mapping[str, Any]] = field(default=contents)

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        body = self.common(prompt, options)
        if options.ignore_eos:
            body["stop_tokens"] = []  # the routes have stops of their own, which would end an answer early
        return merge(body, self.prompt_fields(prompt, self.name), options.extra_body)
