"""From one row's tokens to the text of its choice, in the parts in which it is handed on."""

from dataclasses import dataclass, field
from typing import Literal

from inference.api.rows.request import GenerationRequest
from inference.bus.messages import RowOutput, TokenLogprobs
from inference.text.stream import TextStream
from inference.text.tokenizer import get_tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(slots=True)
class Delta:
    """News of one choice. The last one has a `finish_reason`."""

    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Choice:
    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_reason: str | int | None = None


class ChoiceWriter:
    """Turns one row's tokens into text, and gathers `chunk_size` of them.

    A token is handed on with the text it contributes to, so that one whose text may yet turn out to be
    a stop string (or is half a character) stays back together with it.
    """

    def __init__(self, index: int, request: GenerationRequest) -> None:
        self.index = index
        self.ended = False
        self._stream = TextStream(get_tokenizer(), request.stop_strings, request.include_stop)
        self._chunk_size = request.chunk_size or 1
        self._text = ""
        generated = request.rows[index].generated
        self.shown_tokens = self._handed_on = self._stream.push(generated).tokens
        self._tokens = generated[self._handed_on :]  # received and not handed on
        self._logprobs: list[TokenLogprobs] | None = [] if request.logprobs >= 0 else None

    def write(self, output: RowOutput) -> Delta | None:
        piece = self._stream.push(output.tokens)
        self._text += piece.text
        self._tokens += output.tokens
        if self._logprobs is not None and output.logprobs:
            self._logprobs += output.logprobs
        self.shown_tokens = piece.tokens
        if piece.stop is not None:
            return self._end("stop", piece.stop)
        if output.finish == "paused":  # what is held back comes with the rest
            return self._end("stop", None)
        if output.finish:
            self._text += self._stream.finish()
            self.shown_tokens = self._handed_on + len(self._tokens)
            if output.finish == "length":
                return self._end("length", None)
            return self._end("stop", output.stop_id if output.stop_id > 0 else None)
        if self._text and self.shown_tokens - self._handed_on >= self._chunk_size:
            return self._flush()
        return None

    def _end(self, finish_reason: FinishReason, stop_reason: str | int | None) -> Delta:
        self.ended = True
        delta = self._flush()
        delta.finish_reason, delta.stop_reason = finish_reason, stop_reason
        return delta

    def _flush(self) -> Delta:
        count = self.shown_tokens - self._handed_on
        delta = Delta(self.index, self._text, self._tokens[:count])
        self._text, self._tokens, self._handed_on = "", self._tokens[count:], self.shown_tokens
        if self._logprobs is not None:
            delta.logprobs, self._logprobs = self._logprobs[:count], self._logprobs[count:]
        return delta
