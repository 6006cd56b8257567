"""What a back end reads out of an answer, gathered and written into the record at its end."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.loadgen.records import Chunk, ErrorClass, RequestRecord, TokenSource


class AnswerFailed(Exception):
    """An answer that had begun well turned out to be none: the server reported a failure, or it cannot be read."""

    def __init__(self, error: ErrorClass, text: str) -> None:
        super().__init__(text)
        self.error = error


@dataclass(slots=True)
class _Piece:
    """One chunk of content, with the tokens it holds by whatever its server told."""

    time: float
    reasoning: bool
    choice: int
    tokens: int | None
    total: int | None  # output tokens of the answer so far


@dataclass(slots=True)
class Reply:
    """Calls come in the order of events, each of which begins with `begin_event`."""

    streamed: bool
    ended: bool = False  # the server said that there is no more
    finish_reason: str | None = None
    texts: list[str] = field(default_factory=list)
    output_tokens: int | None = None
    has_result: bool = False  # of another kind than text: an embedding, a ranking
    _pieces: list[_Piece] = field(default_factory=list)
    _input: int | None = None
    _cached: int | None = None
    _reasoning: int | None = None
    _length: int = 0  # characters
    _ids: int = 0
    _counted: int = 0
    _waiting: int = 0  # tokens that have been told and whose text has not come
    _time: float = 0.0  # of the event
    _has_content: bool = False  # the event; several may have come at the same time

    def begin_event(self, time: float) -> None:
        self._time = time
        self._has_content = False

    def content(
        self, text: str, *, tokens: int | None = None, ids: bool = False, reasoning: bool = False, choice: int = 0
    ) -> None:
        """Text of the answer, and how many tokens it is made of where this event tells (`ids`: by their ids).

        This and the following raise TypeError for what a server should not have sent.
        """
        if not isinstance(text, str):
            raise TypeError(f"expected text, got {text!r}")
        if tokens is not None:
            self._waiting += tokens
            if ids:
                self._ids += tokens
            else:
                self._counted += tokens
        if not text:
            return
        self.texts.append(text)
        self._length += len(text)
        if self.streamed:
            known = None if tokens is None else self._waiting
            self._pieces.append(_Piece(self._time, reasoning, _whole(choice), known, None))
            self._has_content = True
        self._waiting = 0

    def content_so_far(self, text: str) -> None:
        """For servers whose every event repeats the answer from its beginning."""
        self.content(text[self._length :])

    def total(self, output_tokens: int) -> None:
        """The server's count of output tokens up to and with this event; called after the event's content."""
        self.output_tokens = _whole(output_tokens)
        if self._has_content:
            self._pieces[-1].total = self.output_tokens

    def usage(self, *, input: int | None = None, cached: int | None = None, reasoning: int | None = None) -> None:
        """The server's other counts, as far as this event has them: tokens of the prompt, of it from a cache, and of
        the output those that are reasoning.
        """
        self._input = self._input if input is None else _whole(input)
        self._cached = self._cached if cached is None else _whole(cached)
        self._reasoning = self._reasoning if reasoning is None else _whole(reasoning)

    def finish(self, reason: str | None) -> None:
        if reason:
            self.finish_reason = reason
            self.ended = True

    def write(self, record: RequestRecord) -> None:
        """Everything but the error. Token sources are those of the server; none where it told nothing."""
        record.text = "".join(self.texts)
        record.chunks = self._chunks()
        record.finish_reason = self.finish_reason
        record.reasoning_tokens = self._reasoning
        record.cached_tokens = self._cached
        if self._input is not None:
            record.prompt_tokens, record.prompt_tokens_source = self._input, TokenSource.USAGE
        for count, source in (
            (self.output_tokens, TokenSource.USAGE),
            (self._ids or None, TokenSource.IDS),
            (self._counted or None, TokenSource.CHUNKS),
        ):
            if count is not None:
                record.output_tokens, record.output_tokens_source = count, source
                break

    def _chunks(self) -> list[Chunk]:
        """Counts are kept where every chunk has one: half of them would be worse than none."""
        counts: list[int | None] = [piece.tokens for piece in self._pieces]
        if None in counts:
            totals = [piece.total for piece in self._pieces]
            counts = [None] * len(totals) if None in totals else _differences(totals)
        return [
            Chunk(piece.time, count, piece.reasoning, piece.choice)
            for piece, count in zip(self._pieces, counts, strict=True)
        ]


def raise_error(data: dict[str, Any]) -> None:
    """Raise AnswerFailed if an event is a report of failure, in any of the forms that servers have for it."""
    error = data.get("error")
    if error is None and data.get("object") == "error":
        error = data.get("message", data)
    if not error:
        return
    if isinstance(error, dict):
        raise AnswerFailed(_status_class(error.get("code")), str(error.get("message", error)))
    raise AnswerFailed(ErrorClass.HTTP_5XX, str(error))


def _whole(number: int) -> int:
    if not isinstance(number, int):
        raise TypeError(f"expected a whole number, got {number!r}")
    return number


def _status_class(code: object) -> ErrorClass:
    if code == 429:
        return ErrorClass.HTTP_429
    return ErrorClass.HTTP_4XX if isinstance(code, int) and 400 <= code < 500 else ErrorClass.HTTP_5XX


def _differences(totals: list[int | None]) -> list[int | None]:
    counts: list[int | None] = []
    before = 0
    for total in totals:
        assert total is not None
        counts.append(total - before)
        before = total
    return counts
