"""The events of a captured answer and when they came: server-sent events, lines of JSON, or one JSON document."""

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.loadgen.exchange import Exchange

Piece = tuple[float, bytes]  # arrival, data

DONE = b"[DONE]"
LINE_TYPES = {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}


class Event(msgspec.Struct, frozen=True):
    """`time` is the arrival of the piece that completed it. `complete` is False where the stream ended within it."""

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
        self._data: list[bytes] = []  # of the event that has not ended
        self._after_cr = False  # a line feed that comes next belongs to the line before

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that `piece` completes."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        lines = (self._line + piece).splitlines()
        self._line = b"" if piece.endswith((b"\n", b"\r")) else lines.pop()
        return [data for line in lines if (data := self._end_line(line)) is not None]

    def rest(self) -> bytes:
        """The data of the event that the end of the stream cut off, or that only lacks its blank line."""
        if self._line:
            self._end_line(self._line)
            self._line = b""
        return self._end_line(b"") or b""

    def _end_line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = b"\n".join(self._data), []
            return data or None
        name, _, value = line.partition(b":")  # a comment has an empty name
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None


def _server_sent(pieces: Sequence[Piece]) -> Iterator[Event]:
    parser = SseParser()
    for time, piece in pieces:
        for data in parser.feed(piece):
            yield Event(time, data)
    if rest := parser.rest():
        yield Event(pieces[-1][0], rest, complete=False)


def _lines(pieces: Sequence[Piece]) -> Iterator[Event]:
    rest = b""
    for time, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield Event(time, line.strip())
    if rest.strip():
        yield Event(pieces[-1][0], rest.strip(), complete=False)


def _document(pieces: Sequence[Piece]) -> Iterator[Event]:
    yield Event(pieces[-1][0], b"".join(data for _, data in pieces).strip())
