"""The events of a stream do not depend on where its bytes were cut."""

from itertools import pairwise

import pytest

from benchmarks.loadgen.events import Event, SseParser, is_stream, read_events
from benchmarks.loadgen.exchange import Exchange

STREAM = (
    ": ping\n\n"
    'data: {"text": " Größe, 大小"}\n\n'
    'event: message\nid: 7\ndata:{"text": "no blank behind the colon"}\nretry: 10\n\n'
    ":\n"
    "data: first line\ndata:  second line\n: in between\ndata\ndata: last\n\n"
    "\n\n"
    "data: [DONE]\n\n"
)
EVENTS = [
    '{"text": " Größe, 大小"}'.encode(),
    b'{"text": "no blank behind the colon"}',
    b"first line\n second line\n\nlast",
    b"[DONE]",
]


def stream(data: bytes, *cuts: int) -> Exchange:
    """The bytes in pieces that arrive at 1, 2, 3, ... seconds."""
    places = [0, *cuts, len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    return Exchange(
        sent=0.0, content_type="text/event-stream", pieces=[(float(at), piece) for at, piece in enumerate(pieces, 1)]
    )


def data_of(exchange: Exchange) -> list[bytes]:
    return [event.data for event in read_events(exchange)]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_a_cut_anywhere_changes_nothing(line_end: str) -> None:
    data = STREAM.replace("\n", line_end).encode()
    assert data_of(stream(data)) == EVENTS
    for cut in range(len(data) + 1):
        assert data_of(stream(data, cut)) == EVENTS, f"cut at {cut}"


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_small_pieces_change_nothing(line_end: str, size: int) -> None:
    data = STREAM.replace("\n", line_end).encode()
    assert data_of(stream(data, *range(size, len(data), size))) == EVENTS


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_an_event_arrives_with_its_first_byte(line_end: str) -> None:
    one, two = (f"data: {word}{line_end}{line_end}".encode() for word in ("one", "two"))
    events = list(read_events(stream(one + two, 4, len(one) - 1, len(one) + 3)))
    assert events[0] == Event(1.0, b"one")
    assert events[1] == Event(3.0, b"two")
    whole = list(read_events(stream(one + two, len(one))))
    assert whole == [Event(1.0, b"one"), Event(2.0, b"two")]


def test_the_fields_of_an_event_are_its_bytes_and_comments_are_not() -> None:
    data = b": ping\nid: 7\ndata: one\n\nretry: 9\n\n: ping\n\ndata: two\ndata: more\n\n"
    cuts = [data.index(word) for word in (b"id:", b"data: one", b"retry", b": ping\n\n", b"data: two", b"data: more")]
    assert list(read_events(stream(data, *cuts))) == [Event(2.0, b"one"), Event(6.0, b"two\nmore")]


def test_several_events_of_one_piece_arrive_together() -> None:
    assert list(read_events(stream(b"data: one\n\ndata: two\n\n"))) == [Event(1.0, b"one"), Event(1.0, b"two")]


def test_the_end_of_the_stream_shows_what_it_cut_off() -> None:
    assert list(read_events(stream(b"data: whole\n\ndata: ha", 13))) == [
        Event(1.0, b"whole"),
        Event(2.0, b"ha", complete=False),
    ]
    assert list(read_events(stream(b"data: whole\n\ndata: ha", 17))) == [
        Event(1.0, b"whole"),
        Event(1.0, b"ha", complete=False),
    ]
    assert list(read_events(stream(b"data: [DONE]\n"))) == [Event(1.0, b"[DONE]", complete=False)]


def test_a_stream_of_comments_has_no_events() -> None:
    assert data_of(stream(b": ping\n\n: ping\n\n", 5)) == []
    assert data_of(Exchange(sent=0.0, content_type="text/event-stream")) == []


def test_a_long_event_in_many_pieces() -> None:
    parser = SseParser()
    events = [event for piece in [b"data: ", *[b"x" * 1000] * 100, b"\n", b"\n"] for event in parser.feed(1.0, piece)]
    assert events == [Event(1.0, b"x" * 100_000)]
    assert parser.rest() is None


def test_lines_of_json() -> None:
    exchange = Exchange(
        sent=0.0,
        content_type="application/x-ndjson",
        pieces=[(1.0, b'{"a": 1}\n{"a"'), (2.0, b': 2}\r\n\n{"a": 3}')],
    )
    assert is_stream(exchange)
    assert list(read_events(exchange)) == [
        Event(1.0, b'{"a": 1}'),
        Event(1.0, b'{"a": 2}'),
        Event(2.0, b'{"a": 3}', complete=False),
    ]


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", ""])
def test_a_document_is_one_event_whatever_it_is_called(content_type: str) -> None:
    exchange = Exchange(sent=0.0, content_type=content_type, pieces=[(1.0, b' {\n"a":'), (2.0, b" 1\n}\n")])
    assert not is_stream(exchange)
    assert list(read_events(exchange)) == [Event(2.0, b'{\n"a": 1\n}')]
