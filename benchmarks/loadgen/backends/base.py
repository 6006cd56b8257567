"""What all back ends over HTTP share: JSON bodies, and reading an answer event by event."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.loadgen.backends.reply import AnswerFailed, Reply, raise_error
from benchmarks.loadgen.events import DONE, Event, is_stream, read_events
from benchmarks.loadgen.exchange import Exchange, Prompt, RequestOptions
from benchmarks.loadgen.records import ErrorClass, RequestRecord

JSON = "application/json"
SHOWN_BYTES = 200  # of an event that could not be read


@dataclass(kw_only=True)
class HttpBackend(ABC):
    """A subclass says what to send (`body`) and what one JSON value of the answer means (`read`)."""

    name: str
    default_endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)
    says_end: bool = True  # its streams end with [DONE] or a finish reason, so that one without was cut off

    @abstractmethod
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, data: dict[str, Any], reply: Reply) -> None:
        """Add one event, or a whole answer that was not streamed, to `reply`. Raises AnswerFailed."""

    def encode(self, body: dict[str, Any]) -> tuple[bytes, str]:
        return msgspec.json.encode(body), JSON

    def parse(self, exchange: Exchange, record: RequestRecord) -> None:
        """Fill the record from the captured bytes, as far as they go if the exchange failed."""
        reply = Reply(streamed=is_stream(exchange))
        try:
            self._read_all(exchange, reply)
        except AnswerFailed as error:
            _fail(record, error.error, str(error))
        else:
            if reply.streamed and self.says_end and not reply.ended:
                _fail(record, ErrorClass.STREAM_TRUNCATED, "the stream ended without [DONE] or a finish reason")
            elif not reply.texts and not reply.has_result:
                _fail(record, ErrorClass.EMPTY, "the answer has no content")
        reply.write(record)

    def _read_all(self, exchange: Exchange, reply: Reply) -> None:
        for event in read_events(exchange):
            reply.begin_event(event.time)
            if event.data == DONE:
                reply.ended = True
                return
            try:
                data = msgspec.json.decode(event.data)
                if isinstance(data, dict):
                    raise_error(data)
                self.read(data, reply)
            except (msgspec.DecodeError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise _unreadable(event, error) from error


def text_of(prompt: Prompt, backend: str) -> str:
    """Raises ValueError for a prompt that is no text."""
    if prompt.text is None:
        raise ValueError(f"prompt: the back end {backend} sends one text, not {_kind(prompt)}")
    return prompt.text


def texts_of(prompt: Prompt, backend: str) -> list[str]:
    """Of all prompts of a batch. Raises ValueError for one that is no text."""
    return [text_of(one, backend) for one in ([prompt] if prompt.batch is None else prompt.batch)]


def _kind(prompt: Prompt) -> str:
    if prompt.batch is not None:
        return "a batch"
    return "messages" if prompt.messages is not None else "token ids"


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """One body out of parts, later ones over earlier ones; fields that are None are left out."""
    return {name: value for part in parts for name, value in part.items() if value is not None}


def _fail(record: RequestRecord, error: ErrorClass, text: str) -> None:
    """The failure that the exchange itself had comes first: what is wrong behind it follows from it."""
    if record.error is ErrorClass.NONE:
        record.error, record.error_text = error, text


def _unreadable(event: Event, error: Exception) -> AnswerFailed:
    """For an event that is no JSON, or not of the form that its protocol has."""
    shown = event.data[:SHOWN_BYTES].decode(errors="replace")
    if event.complete:
        return AnswerFailed(ErrorClass.PARSE, f"{type(error).__name__}: {error}: {shown}")
    return AnswerFailed(ErrorClass.STREAM_TRUNCATED, f"the stream ended within an event: {shown}")
