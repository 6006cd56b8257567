"""Text Generation Inference, and the servers that took over its route: one event per token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.loadgen.backends.base import HttpBackend, merge, text_of
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


@dataclass(kw_only=True)
class GenerateStream(HttpBackend):
    parameters: Mapping[str, Any]
    ignore_eos_field: str = "ignore_eos"
    shortest_field: str | None = None  # where an answer's least length can be asked for
    truncates: bool = False

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        own = {
            "max_new_tokens": prompt.output_tokens,
            self.ignore_eos_field: options.ignore_eos or None,
            "truncate": prompt.prompt_tokens if self.truncates else None,
        }
        if self.shortest_field and options.ignore_eos:
            own[self.shortest_field] = prompt.output_tokens
        parameters = merge(self.parameters, own, options.sampling)
        return merge({"inputs": text_of(prompt, self.name), "parameters": parameters}, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        token = data.get("token") or {}
        if token:
            reply.content("" if token.get("special") else token.get("text") or "", tokens=1)
            reply.usage(input=token.get("prompt_tokens"))
        details = data.get("details") or {}
        total = details.get("generated_tokens", token.get("count_output_tokens"))
        if total is not None:
            reply.total(total)
        reply.finish(details.get("finish_reason") or data.get("finish_reason"))
        reply.ended = reply.ended or bool(data.get("finished")) or data.get("generated_text") is not None
