"""What evals ask of /v1/completions: texts continued, and continuations scored."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.evals.client import Client
from benchmarks.evals.errors import EvalError

Prompt = list[int] | str

PATH = "/v1/completions"


class Logprobs(msgspec.Struct):
    """One entry for each token; the first token of a prompt has None."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] = []


class Choice(msgspec.Struct):
    text: str
    index: int = 0
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    tokens: int | None = None  # generated; known where the request had this one choice


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Reply(msgspec.Struct):
    choices: list[Choice]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a continuation is: natural logarithm, summed over its tokens.

    `greedy` is true when each of its tokens is the most likely one; `best` is the text of those.
    """

    logprob: float
    greedy: bool
    tokens: int
    best: str


class Completions:
    """The endpoint of one model. Counts the tokens that the server says it has read and generated.

    `skips_contexts`: the server takes `logprob_start_len`, and so need not score what nobody asks for.
    """

    def __init__(self, client: Client, model: str, *, skips_contexts: bool = False) -> None:
        self._client = client
        self._model = model
        self._skips_contexts = skips_contexts
        self.prompt_tokens = 0
        self.output_tokens = 0

    async def complete(self, prompts: Sequence[Prompt], **fields: Any) -> list[Choice]:
        """One choice for each prompt, in their order; `fields` are the body's. Raises EvalError."""
        body = {"model": self._model, "prompt": list(prompts), "temperature": 0, **fields}
        reply = await self._client.post(PATH, body, _Reply)
        if len(reply.choices) != len(prompts):
            raise EvalError(f"{PATH}: {len(prompts)} prompts were answered with {len(reply.choices)} choices")
        if reply.usage:
            self.prompt_tokens += reply.usage.prompt_tokens
            self.output_tokens += reply.usage.completion_tokens
            if len(prompts) == 1:
                reply.choices[0].tokens = reply.usage.completion_tokens
        return sorted(reply.choices, key=lambda choice: choice.index)

    async def hold(self, prompt: Prompt, begun: asyncio.Event, **fields: Any) -> None:
        """Keep the server at work with one prompt until cancelled; `begun` is set once it answers. Raises EvalError."""
        body = {"model": self._model, "prompt": prompt, "temperature": 0, **fields}
        await self._client.hold(PATH, body, begun)

    async def score(self, pairs: Sequence[tuple[Prompt, Prompt]]) -> list[Score]:
        """The score of each (context, continuation), both token ids or both text. Raises EvalError."""
        whole = [context + continuation for context, continuation in pairs]  # type: ignore[operator]
        fields: dict[str, Any] = {"max_tokens": 1, "echo": True, "logprobs": 1}
        if self._skips_contexts and not any(isinstance(context, str) for context, _ in pairs):
            fields["logprob_start_len"] = [len(context) for context, _ in pairs]
        choices = await self.complete(whole, **fields)
        return [_score(*pair, choice.logprobs) for pair, choice in zip(pairs, choices, strict=True)]


def _score(context: Prompt, continuation: Prompt, logprobs: Logprobs | None) -> Score:
    if logprobs is None or not logprobs.top_logprobs:
        raise EvalError("the server gives no logprobs with echo; `eval lambada --procedure greedy` needs none")
    begin, end = _place(context, continuation, logprobs)
    own = logprobs.token_logprobs[begin:end]
    top = logprobs.top_logprobs[begin:end]
    if not own or None in own or len(top) != len(own) or not all(top):
        raise EvalError("the server gives no logprobs of the prompt's tokens; is `echo` supported?")
    values = [value for value in own if value is not None]
    best = [max(entry, key=entry.__getitem__) for entry in top if entry]
    greedy = all(value >= max(entry.values()) for value, entry in zip(values, top, strict=True) if entry)
    return Score(sum(values), greedy, len(values), "".join(best))


def _place(context: Prompt, continuation: Prompt, logprobs: Logprobs) -> tuple[int, int]:
    """Where the continuation's tokens are among those of the echo, as indices of the first and behind the last."""
    if not isinstance(context, str):
        if len(logprobs.token_logprobs) < len(context) + len(continuation):
            raise EvalError("the server gives logprobs of fewer tokens than the prompt has; is `echo` supported?")
        return len(context), len(context) + len(continuation)
    offsets = logprobs.text_offset
    begin = next((place for place, offset in enumerate(offsets) if offset >= len(context)), len(offsets))
    if begin == len(offsets) or offsets[begin] > len(context):
        begin = max(begin - 1, 0)  # a token that reaches over the border belongs to the continuation
    whole = len(context) + len(continuation)
    end = next((place for place, offset in enumerate(offsets) if offset >= whole), len(offsets))
    return begin, end
