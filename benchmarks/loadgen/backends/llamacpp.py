"""llama.cpp's own route. It is asked not to reuse prompts, which would measure its cache."""

from typing import Any

from benchmarks.loadgen.backends.base import HttpBackend, merge
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


class LlamaCpp(HttpBackend):
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        if prompt.messages is not None:
            raise ValueError(f"prompt: the back end {self.name} sends text or token ids, not messages")
        own = {
            "prompt": prompt.text if prompt.token_ids is None else prompt.token_ids,
            "n_predict": prompt.output_tokens,
            "ignore_eos": options.ignore_eos or None,
            "n_probs": options.logprobs,
            "stream": options.stream,
            "return_tokens": True,
            "cache_prompt": False,
        }
        return merge(own, options.sampling, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        tokens = data.get("tokens")
        reply.content(data.get("content") or "", tokens=len(tokens) if tokens else None, ids=True)
        timings = data.get("timings") or {}
        if "predicted_n" in timings:
            reply.total(timings["predicted_n"])
        # Prompt tokens that came from the cache are not in the timings.
        reply.usage(input=data.get("tokens_evaluated", timings.get("prompt_n")))
        if data.get("stop"):
            reply.ended = True
            reply.finish(data.get("stop_type"))
