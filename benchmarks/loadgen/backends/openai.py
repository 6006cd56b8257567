"""The OpenAI shapes, and the many servers that have them: completions, chats, embeddings, rankings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.loadgen.backends.base import HttpBackend, merge, text_of
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


@dataclass(kw_only=True)
class OpenAIBackend(HttpBackend):
    """Servers differ in what they are asked; what they answer is read alike, whichever of its forms it has."""

    streams: bool = True
    usage_in_every_chunk: bool = False  # tells tokens per chunk, and is no field of OpenAI's own
    length_field: str = "max_tokens"
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields of every body

    def common(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        """What bodies of all kinds share."""
        body = merge(
            {"model": options.model or None, self.length_field: prompt.output_tokens},
            {"min_tokens": prompt.output_tokens if options.exact_length else prompt.min_output_tokens},
            {"ignore_eos": options.ignore_eos or None, "stream": options.stream and self.streams},
            self.fixed,
            options.sampling,
        )
        if body["stream"]:
            usage = {"include_usage": True, "continuous_usage_stats": self.usage_in_every_chunk or None}
            body["stream_options"] = merge(usage)
        return body

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        for choice in data.get("choices") or ():
            read_choice(choice, reply)
        read_usage(data.get("usage"), reply)


class Completions(OpenAIBackend):
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        if prompt.messages is not None:
            raise ValueError(f"prompt: the back end {self.name} sends text or token ids, not messages")
        own = {
            "prompt": text_or_ids(prompt),
            "suffix": prompt.suffix,
            "logprobs": options.logprobs,
        }
        return merge(self.common(prompt, options), own, options.extra_body)


class Chat(OpenAIBackend):
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        if prompt.messages is None:
            messages = [{"role": "user", "content": text_of(prompt, self.name)}]
        else:
            messages = prompt.messages
        own = {
            "messages": messages,
            "logprobs": None if options.logprobs is None else True,
            "top_logprobs": options.logprobs,
            "chat_template_kwargs": options.chat_template_kwargs or None,
        }
        return merge(self.common(prompt, options), own, options.extra_body)


class DeepSpeedMII(Completions):
    """Its older versions answer with a list of texts."""

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        super().read(data, reply)
        for index, text in enumerate(data.get("text") or ()):
            reply.content(text, choice=index)


@dataclass(kw_only=True)
class Embeddings(HttpBackend):
    """Nothing is generated: the answer is whole, and its latency is the figure."""

    as_messages: bool = False  # a plain prompt too

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        own: dict[str, Any]
        if prompt.messages is not None:
            own = {"messages": prompt.messages}
        elif self.as_messages:
            own = {"messages": [{"role": "user", "content": text_of(prompt, self.name)}]}
        else:
            own = {"input": text_or_ids(prompt)}
        return merge({"model": options.model or None}, own, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        reply.has_result = bool(data.get("data"))
        read_usage(data.get("usage"), reply)


class Rerank(HttpBackend):
    """The first line of the prompt is the query, the others are the documents, unless the extra body has these."""

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        query, *documents = text_of(prompt, self.name).splitlines()
        own = {"model": options.model or None, "query": query, "documents": documents}
        body = merge(own, options.extra_body)
        if not body["documents"]:
            raise ValueError(f"prompt: the back end {self.name} needs lines behind the first, which are the documents")
        return body

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        reply.has_result = bool(data.get("results"))
        read_usage(data.get("usage"), reply)


def text_or_ids(prompt: Prompt) -> str | list[Any] | None:
    """Of one prompt, or a list of them."""
    if prompt.batch is not None:
        return [text_or_ids(one) for one in prompt.batch]
    return prompt.text if prompt.token_ids is None else prompt.token_ids


def read_choice(choice: dict[str, Any], reply: Reply) -> None:
    """A completion, a chat's delta, or a whole message."""
    message = choice.get("delta") or choice.get("message") or {}
    index = choice.get("index", 0)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    text = (message.get("content") or choice.get("text") or "") + _tool_text(message)
    tokens, ids = _count(choice)
    if reasoning:
        # Where one event has both, its tokens are counted with the text.
        reply.content(reasoning, tokens=None if text else tokens, ids=ids, reasoning=True, choice=index)
    if text or not reasoning:
        reply.content(text, tokens=tokens, ids=ids, choice=index)
    reply.finish(choice.get("finish_reason"))


def read_usage(usage: dict[str, Any] | None, reply: Reply) -> None:
    if not usage:
        return
    if (output := usage.get("completion_tokens")) is not None:
        reply.total(output)
    reply.usage(
        input=usage.get("prompt_tokens"),
        cached=(usage.get("prompt_tokens_details") or usage).get("cached_tokens"),
        reasoning=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    )


def _count(choice: dict[str, Any]) -> tuple[int | None, bool]:
    """Tokens of an event, where the server gives their ids or log probabilities, and whether it was ids."""
    if (ids := choice.get("token_ids")) is not None:
        return len(ids), True
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("tokens") or logprobs.get("content")
    return (len(entries), False) if entries else (None, False)


def _tool_text(message: dict[str, Any]) -> str:
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    return "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls)
