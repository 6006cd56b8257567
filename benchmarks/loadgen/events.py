"""The events of a captured answer and when they came: server-sent events, lines of JSON, or one JSON document."""

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.loadgen.exchange import Exchange

Piece = tuple[float, bytes]  # arrival, data

DONE = b"[DONE]"
LINE_TYPES = {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}


class Event(msgspec.Struct, frozen=True):
    """`time` is the arrival of its first byte: a comment ahead of it is none of its bytes, and a document that is no
    stream arrives with its last. `complete` is False where the stream ended within it.
    """

    time: float
    data: bytes
    complete: bool = True


def is_stream(exchange: Exchange) -> bool:
    """Whether the answer came in events. Servers mislabel their answers, so that the first byte has the last word."""
    if exchange.content_type in LINE_TYPES:
        return True
    head = next((data.lstrip() for _, data in exchange.pieces if data.strip()), b"")
    return head[:1] not in (b"{", b"[")


def read_events(exchange: Exchange) -> Iterator[Event]:
    """The events of an answer in order, `[DONE]` among them; an answer that is no stream is one event."""
    if exchange.content_type in LINE_TYPES:
        return _lines(exchange.pieces)
    return _server_sent(exchange.pieces) if is_stream(exchange) else _document(exchange.pieces)


class SseParser:
    """Server-sent events out of pieces that may be split anywhere. Only the data of events is kept."""

    def __init__(self) -> None:
        self._line = b""  # the beginning of a line whose end has not come
        self._line_time = 0.0  # of its first byte
        self._data: list[bytes] = []  # of the event that has not ended
        self._event_time: float | None = None  # of the first byte of its first field
        self._after_cr = False  # a line feed that comes next belongs to the line before

    def feed(self, time: float, piece: bytes) -> list[Event]:
        """The events that `piece`, which came at `time`, completes."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        begun = self._line_time if self._line else time
        lines = (self._line + piece).splitlines()
        self._line = b"" if piece.endswith((b"\n", b"\r")) else lines.pop()
        events = []
        for line in lines:
            if event := self._end_line(begun, line):
                events.append(event)
            begun = time
        self._line_time = begun
        return events

    def rest(self) -> Event | None:
        """The event that the end of the stream cut off, or that only lacks its blank line."""
        if self._line:
            self._end_line(self._line_time, self._line)
            self._line = b""
        event = self._end_line(self._line_time, b"")
        return event and Event(event.time, event.data, complete=False)

    def _end_line(self, time: float, line: bytes) -> Event | None:
        """Take in a line whose first byte came at `time`; a blank one ends an event."""
        if not line:
            begun, data = self._event_time, b"\n".join(self._data)
            self._event_time, self._data = None, []
            return None if begun is None or not data else Event(begun, data)
        name, _, value = line.partition(b":")
        if name and self._event_time is None:  # a comment has an empty name
            self._event_time = time
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None


def _server_sent(pieces: Sequence[Piece]) -> Iterator[Event]:
    parser = SseParser()
    for time, piece in pieces:
        yield from parser.feed(time, piece)
    if rest := parser.rest():
        yield rest


def _lines(pieces: Sequence[Piece]) -> Iterator[Event]:
    rest, begun = b"", 0.0
    for time, piece in pieces:
        begun = begun if rest else time
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield Event(begun, line.strip())
            begun = time
    if rest.strip():
        yield Event(begun, rest.strip(), complete=False)


def _document(pieces: Sequence[Piece]) -> Iterator[Event]:
    yield Event(pieces[-1][0], b"".join(data for _, data in pieces).strip())
