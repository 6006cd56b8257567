"""TensorRT-LLM behind Triton: the stream has text alone, neither counts nor an end."""

from typing import Any

from benchmarks.loadgen.backends.base import HttpBackend, merge, text_of
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


class TensorRTLLM(HttpBackend):
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        own = {
            "text_input": text_of(prompt, self.name),
            "max_tokens": prompt.output_tokens,
            "min_length": prompt.output_tokens if options.ignore_eos else None,
            "stream": options.stream,
            "accumulate_tokens": False,  # each event then holds its own text only
        }
        return merge(own, options.sampling, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        reply.content(data["text_output"])
