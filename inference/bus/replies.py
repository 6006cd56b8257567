"""One form for what redis-py returns from stream reads: lists under RESP2, nested dicts under RESP3."""

from collections.abc import Iterator
from typing import Any

Entry = tuple[bytes, dict[bytes, bytes]]  # (id, fields)


def by_stream(answer: Any) -> Iterator[tuple[str, list[Entry]]]:
    """(stream, its entries) of an XREAD or XREADGROUP answer, which is None or empty after a time-out."""
    streams = answer.items() if isinstance(answer, dict) else answer or ()
    for stream, entries in streams:
        if entries and isinstance(entries[0], list):  # RESP3 wraps each stream's entries once more
            entries = entries[0]
        yield stream.decode(), entries


def entries_of(answer: Any) -> Iterator[Entry]:
    """All entries of an XREAD answer."""
    for _stream, entries in by_stream(answer):
        yield from entries
