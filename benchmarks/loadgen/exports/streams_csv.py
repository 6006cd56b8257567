"""A row for each stream of each request, warm-up included: where one request carries a batch, each prompt has its own.

`ttft_ms` and `e2el_ms` are from the request's send to the stream's first and last chunk; `tokens` is empty where the
server did not say how many each chunk held. An answer that was not streamed has no row.
"""

import csv
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Any

from benchmarks.loadgen.records import Chunk, RequestRecord, RunResult

COLUMNS = ("index", "choice", "phase", "sent", "ttft_ms", "e2el_ms", "chunks", "tokens")


def write(result: RunResult) -> bytes:
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_rows(result.records))
    return out.getvalue().encode()


def to_rows(records: Iterable[RequestRecord]) -> Iterator[dict[str, Any]]:
    for record in records:
        streams: dict[int, list[Chunk]] = {}
        for chunk in record.chunks:
            streams.setdefault(chunk.choice, []).append(chunk)
        for choice in sorted(streams):
            yield _row(record, choice, streams[choice])


def _row(record: RequestRecord, choice: int, chunks: list[Chunk]) -> dict[str, Any]:
    counts = [chunk.tokens for chunk in chunks]
    return {
        "index": record.index,
        "choice": choice,
        "phase": record.phase.value,
        "sent": record.sent,
        "ttft_ms": _since_sent(record, chunks[0]),
        "e2el_ms": _since_sent(record, chunks[-1]),
        "chunks": len(chunks),
        "tokens": None if None in counts else sum(count or 0 for count in counts),
    }


def _since_sent(record: RequestRecord, chunk: Chunk) -> float | None:
    return None if record.sent is None else (chunk.time - record.sent) * 1000
