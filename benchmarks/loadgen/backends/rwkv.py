"""The native routes of RWKV servers: raw prompts in a list, answered by one stream that carries them all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.loadgen.backends.base import HttpBackend, merge, texts_of
from benchmarks.loadgen.backends.openai import OpenAIBackend
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


def contents(prompt: Prompt, backend: str) -> dict[str, Any]:
    return {"contents": texts_of(prompt, backend)}


def messages_or_contents(prompt: Prompt, backend: str) -> dict[str, Any]:
    return contents(prompt, backend) if prompt.messages is None else {"messages": prompt.messages}


def fill_in(prompt: Prompt, backend: str) -> dict[str, Any]:
    suffixes = [one.suffix or "" for one in ([prompt] if prompt.batch is None else prompt.batch)]
    return {"prefix": texts_of(prompt, backend), "suffix": suffixes}


def state_turn(prompt: Prompt, backend: str) -> dict[str, Any]:
    """Without a session the server keeps nothing."""
    return {**contents(prompt, backend), "session_id": prompt.session}


@dataclass(kw_only=True)
class NativeBackend(OpenAIBackend):
    """Of a batch each prompt is a stream of its own in the record (`Chunk.choice`)."""

    prompt_fields: Callable[[Prompt, str], Mapping[str, Any]] = field(default=contents)

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        body = self.common(prompt, options)
        if options.ignore_eos:
            body["stop_tokens"] = []  # the routes have stops of their own, which would end an answer early
        return merge(body, self.prompt_fields(prompt, self.name), options.extra_body)


class Translation(HttpBackend):
    """A list of texts, translated in one answer: no stream, no usage and no length to ask for.

    Its languages are the extra body's, and English without one.
    """

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        languages = {"source_lang": "auto", "target_lang": "en"}
        return merge(languages, {"text_list": texts_of(prompt, self.name)}, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        for index, translation in enumerate(data["translations"]):
            reply.content(translation["text"], choice=index)
