"""POST /v1/completions: text, or token ids, continued."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from django.http.response import HttpResponseBase
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.replies import TextChoice, TextCompletion, Usage
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import MAX_NUMBER, MAX_TOP_LOGPROBS, StreamOptions, TokenId
from inference.api.edge.sse import ChunkFrames, json_bytes
from inference.api.generating.limits import check_prompt, check_rows, encode_prompts, new_tokens
from inference.api.generating.logprobs import CompletionLogprobsWriter
from inference.api.generating.model import find_model
from inference.api.generating.reasoning import Thinking
from inference.api.generating.sampling import COMPLETION, build_sampling, collect_stops
from inference.api.generating.structured import StructuredFields, check_grammar, grammar_text, read_constraint
from inference.api.generating.usage import count_usage
from inference.api.native.fim import fim_prompt
from inference.api.rows.choices import Choice, Delta
from inference.api.rows.generation import Generation, start
from inference.api.rows.request import GenerationRequest, Row
from inference.bus.messages import END_OF_TEXT, ModelInfo
from inference.text.tokenizer import get_tokenizer

Prompt = str | list[str | TokenId | list[TokenId]] | None
StartLength = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
PROMPT_FORMS = "a string, a list of strings, a list of token ids, or a list of those"


class CompletionBody(StructuredFields, kw_only=True):
    prompt: Prompt = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    # With echo: the prompt's tokens before this one have no logprobs, which makes scoring its end cheap. One for all
    # prompts, or one for each.
    logprob_start_len: StartLength | list[StartLength] | None = None
    suffix: str | None = None  # the text is to go between the prompt and this


class CompletionView(ApiView):
    @operation(
        "Continue one or more prompts",
        tag="OpenAI",
        request=CompletionBody,
        replies=(TextCompletion,),
        statuses=(400, 404, 500),
        streams=True,
    )
    async def post(self, request: Request) -> HttpResponseBase:
        body = request.payload.read(CompletionBody)
        _check(body)
        model = await find_model(body.model)
        completion = Completion(body, model, await _grammar(body))
        completion.request.offline = request.user.offline
        generation = await start(completion.request)
        if body.stream:
            return await self.stream(generation, completion.frames(generation))
        async with generation:
            return json_response(completion.reply(generation, await generation.collect()))


class Completion:
    """One request: its rows on the way in, and its reply or frames on the way out."""

    def __init__(self, body: CompletionBody, model: ModelInfo, grammar: str) -> None:
        self.body = body
        self.choices_per_prompt = body.n or 1
        self.rows_per_prompt = body.best_of or self.choices_per_prompt
        self.fixed = {
            "id": f"cmpl-{uuid.uuid4().hex[:24]}",
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": f"fp_{model.fingerprint[:16]}",
        }
        prompts = read_prompts(_around_the_gap(body.prompt, body.suffix), model.vocab)
        asked_by = "best_of" if body.best_of else "n"
        check_rows(len(prompts) * self.rows_per_prompt, asked_by if len(prompts) == 1 else "prompt")
        self.prompts = [prompt for prompt in prompts for _ in range(self.rows_per_prompt)]
        self.max_tokens = new_tokens(body, COMPLETION)
        stops = collect_stops(body, COMPLETION)
        logprobs = -1 if body.logprobs is None else body.logprobs
        ranked = self.rows_per_prompt > self.choices_per_prompt
        starts = _read_starts(body, len(prompts))
        self.request = GenerationRequest(
            rows=[
                Row(
                    prompt=ids,
                    sampling=build_sampling(body, COMPLETION, i),
                    prompt_logprobs_from=starts[i // self.rows_per_prompt],
                )
                for i, ids in enumerate(self.prompts)
            ],
            model=model.id,
            endpoint="completions",
            request_id=self.fixed["id"],  # the id under which it can be stopped and paused
            max_tokens=max(self.max_tokens, 1),  # 0 asks for the prompt's own logprobs; the token is dropped
            stop_ids=sorted({*stops.ids, END_OF_TEXT}) if grammar else stops.ids,
            stop_strings=stops.texts,
            include_stop=bool(body.include_stop_str_in_output),
            logprobs=max(logprobs, 0) if ranked else logprobs,
            prompt_logprobs=logprobs if body.echo else -1,
            grammar=grammar,
            chunk_size=body.chunk_size,
        )

    def reply(self, generation: Generation, rows: Sequence[Choice]) -> TextCompletion:
        choices = []
        for first in range(0, len(rows), self.rows_per_prompt):
            group = sorted(rows[first : first + self.rows_per_prompt], key=_mean_logprob, reverse=True)
            if self.rows_per_prompt == self.choices_per_prompt:
                group.sort(key=lambda row: row.index)
            for row in group[: self.choices_per_prompt]:
                choices.append(_ChoiceWriter(self, generation, row.index).write(row, len(choices)))
        return TextCompletion(**self.fixed, choices=choices, usage=self.usage(generation))

    async def frames(self, generation: Generation) -> AsyncIterator[bytes]:
        options = self.body.stream_options or StreamOptions()
        frames = ChunkFrames(object_name="text_completion", with_usage=bool(options.include_usage), **self.fixed)
        writers = [_ChoiceWriter(self, generation, index) for index in range(len(self.prompts))]
        async for deltas in generation.deltas():
            for delta in deltas:
                choice = writers[delta.index].write(delta, delta.index)
                usage = self.usage(generation) if options.continuous_usage_stats else None
                yield frames.frame(json_bytes(choice), usage)
        if options.include_usage:
            yield frames.frame(b"", self.usage(generation))

    def usage(self, generation: Generation) -> Usage:
        return count_usage(generation, self.rows_per_prompt, completion_tokens=None if self.max_tokens else 0)


class _ChoiceWriter:
    """One choice's text and logprobs, whole or in parts; with `echo`, the prompt comes first."""

    def __init__(self, completion: Completion, generation: Generation, row: int) -> None:
        self._echo = bool(completion.body.echo)
        self._keeps_tokens = completion.max_tokens > 0
        self._prompt = completion.prompts[row]
        self._generation = generation
        self._row = row
        self._logprobs = CompletionLogprobsWriter() if completion.body.logprobs is not None else None

    def write(self, part: Delta | Choice, index: int) -> TextChoice:
        """`part` under the number that its choice has in the reply."""
        text, tokens, logprobs = part.text, part.tokens, part.logprobs or []
        finish_reason, stop_reason = part.finish_reason, part.stop_reason
        if not self._keeps_tokens:  # nor does it matter how the one that was drawn ended it
            text, tokens, logprobs = "", [], []
            finish_reason, stop_reason = "length" if finish_reason else None, None
        if self._echo:
            self._echo = False
            text = get_tokenizer().decode(self._prompt) + text
            tokens = self._prompt + tokens
            # A prompt of one token has no logprobs, as nothing comes before it, and neither has one that was stopped.
            scored = self._generation.prompt_logprobs[self._row] or []
            logprobs = scored + [None] * (len(self._prompt) - len(scored)) + logprobs
        written = self._logprobs.write(tokens, logprobs) if self._logprobs else None
        return TextChoice(index, text, written, finish_reason, stop_reason)


def read_prompts(prompt: Prompt, vocab: int) -> list[list[int]]:
    """Token ids of every prompt. Raises InvalidRequest."""
    if prompt is None or prompt == []:
        raise InvalidRequest(f"prompt: expected {PROMPT_FORMS}", param="prompt")
    if isinstance(prompt, str):
        return encode_prompts([prompt], "prompt")
    if all(isinstance(item, str) for item in prompt):
        return encode_prompts(prompt, "prompt")
    if all(isinstance(item, int) for item in prompt):
        prompt = [prompt]
    if not all(isinstance(item, list) for item in prompt):
        raise InvalidRequest(f"prompt: expected {PROMPT_FORMS}, got a mixture", param="prompt")
    for ids in prompt:
        if ids and max(ids) >= vocab:
            raise InvalidRequest(f"prompt: token id {max(ids)} is not below {vocab}", param="prompt")
    return [check_prompt(ids, "prompt") for ids in prompt]


def _read_starts(body: CompletionBody, prompts: int) -> list[int]:
    """`logprob_start_len` of each prompt. Raises InvalidRequest."""
    given = body.logprob_start_len or 0
    if isinstance(given, int):
        return [given] * prompts
    if len(given) != prompts:
        message = f"logprob_start_len: expected one number, or one for each of the {prompts} prompts, got {len(given)}"
        raise InvalidRequest(message, param="logprob_start_len")
    return given


def _around_the_gap(prompt: Prompt, suffix: str | None) -> Prompt:
    """With a suffix, the prompts that ask for what comes between. Raises InvalidRequest."""
    if not suffix or not prompt:
        return prompt
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("suffix: needs prompts that are text", param="suffix")
    return [fim_prompt(text, suffix) for text in texts if isinstance(text, str)]


async def _grammar(body: CompletionBody) -> str:
    constraint = read_constraint(body)
    if not constraint:
        return ""
    grammar = grammar_text(constraint.rule, Thinking.NONE)
    await check_grammar(grammar, constraint.param)
    return grammar


def _check(body: CompletionBody) -> None:
    n = body.n or 1
    if body.suffix and body.echo:
        raise InvalidRequest("suffix: cannot be combined with echo", param="suffix")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens: expected an integer >= 1, or echo with 0", param="max_tokens")
    if body.best_of and body.best_of < n:
        raise InvalidRequest(f"best_of: expected an integer >= n, which is {n}", param="best_of")
    if body.stream and (body.best_of or n) > n:
        raise InvalidRequest("best_of: the best choices are known at the end, so they cannot stream", param="best_of")
    if body.logprob_start_len is not None and not (body.echo and body.logprobs is not None):
        raise InvalidRequest("logprob_start_len: needs echo and logprobs", param="logprob_start_len")
    if body.stream_options and not body.stream:
        raise InvalidRequest("stream_options: needs stream", param="stream_options")


def _mean_logprob(choice: Choice) -> float:
    return sum(entry.logprob for entry in choice.logprobs) / max(len(choice.logprobs), 1)
