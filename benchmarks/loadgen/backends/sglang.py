"""SGLang's own route. Every event repeats the text so far."""

from typing import Any

from benchmarks.loadgen.backends.base import HttpBackend, merge, text_of
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


class SGLang(HttpBackend):
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        if prompt.token_ids is None:
            own: dict[str, Any] = {"text": text_of(prompt, self.name)}
        else:
            own = {"input_ids": prompt.token_ids}
        sampling = {"max_new_tokens": prompt.output_tokens, "ignore_eos": options.ignore_eos or None}
        own |= {
            "sampling_params": merge(sampling, options.sampling),
            "stream": options.stream,
            "return_logprob": None if options.logprobs is None else True,
            "top_logprobs_num": options.logprobs,
        }
        return merge(own, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        reply.content_so_far(data.get("text") or "")
        meta = data.get("meta_info") or {}
        reply.usage(input=meta.get("prompt_tokens"), cached=meta.get("cached_tokens"))
        if "completion_tokens" in meta:
            reply.total(meta["completion_tokens"])
        reason = meta.get("finish_reason")
        reply.finish(reason.get("type") if isinstance(reason, dict) else reason)
