"""The figures of one request, in seconds (tokens per second for speeds), None where it does not have one."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from benchmarks.loadgen.records import Chunk, RequestRecord


def first_arrival(record: RequestRecord) -> float | None:
    """Of content; an answer that was not streamed arrives when it is done."""
    return record.chunks[0].time if record.chunks else _whole_answer(record)


def last_arrival(record: RequestRecord) -> float | None:
    return record.chunks[-1].time if record.chunks else _whole_answer(record)


def queue_delay(record: RequestRecord) -> float | None:
    return _span(record.intended, record.sent)


def ttft(record: RequestRecord) -> float | None:
    return _span(record.sent, record.chunks[0].time) if record.chunks else None


def ttft_sched(record: RequestRecord) -> float | None:
    return _span(record.intended, record.chunks[0].time) if record.chunks else None


def ttfot(record: RequestRecord) -> float | None:
    output = next((chunk.time for chunk in record.chunks if not chunk.reasoning), None)
    return _span(record.sent, output)


def tpot(record: RequestRecord) -> float | None:
    """Decode time per token behind the first chunk; of several choices, their sums."""
    if record.output_tokens is None:
        return None
    streams = [stream for stream in _streams(record) if stream]
    later = record.output_tokens - sum(stream[0].tokens or 1 for stream in streams)
    if later <= 0 or all(len(stream) < 2 for stream in streams):
        return None
    return sum(stream[-1].time - stream[0].time for stream in streams) / later


def e2el(record: RequestRecord) -> float | None:
    return _span(record.sent, last_arrival(record))


def e2el_sched(record: RequestRecord) -> float | None:
    return _span(record.intended, last_arrival(record))


def close_time(record: RequestRecord) -> float | None:
    return _span(record.chunks[-1].time, record.done) if record.chunks else None


Metric = Callable[[RequestRecord], float | None]

TIMES: dict[str, Metric] = {
    "queue_delay": queue_delay,
    "ttft": ttft,
    "ttft_sched": ttft_sched,
    "ttfot": ttfot,
    "tpot": tpot,
    "e2el": e2el,
    "e2el_sched": e2el_sched,
    "close_time": close_time,
}


def decode_tps_user(record: RequestRecord) -> float | None:
    return _rate(1, tpot(record))


def e2e_tps_user(record: RequestRecord) -> float | None:
    return _rate(record.output_tokens, e2el(record))


def prefill_tps(record: RequestRecord) -> float | None:
    if record.prompt_tokens is None:
        return None
    return _rate(record.prompt_tokens - (record.cached_tokens or 0), ttft(record))


SPEEDS: dict[str, Metric] = {
    "decode_tps_user": decode_tps_user,
    "e2e_tps_user": e2e_tps_user,
    "prefill_tps": prefill_tps,
}


def chunk_gaps(record: RequestRecord) -> list[float]:
    """Between one chunk and the next of the same choice."""
    return [after.time - before.time for stream in _streams(record) for before, after in pairwise(stream)]


def token_gaps(record: RequestRecord) -> list[float]:
    """The chunk gaps, shared out evenly among the tokens of the chunk that ended each."""
    share = _share(record)
    gaps: list[float] = []
    for stream in _streams(record):
        waited = 0.0  # a chunk may have no token of its own: its wait is part of the next one's
        for before, after in pairwise(stream):
            waited += after.time - before.time
            tokens = share if after.tokens is None else after.tokens
            if tokens > 0:
                gaps.extend([waited / tokens] * max(1, round(tokens)))
                waited = 0.0
    return gaps


def is_chunk_estimated(record: RequestRecord) -> bool:
    return any(chunk.tokens is None for chunk in record.chunks)


def token_arrivals(record: RequestRecord) -> Iterator[tuple[float, float]]:
    """(time, output tokens) that add up to the request's count. Tokens without text came with the last chunk."""
    if not record.chunks:
        arrived = _whole_answer(record)
        if arrived is not None and record.output_tokens:
            yield arrived, float(record.output_tokens)
        return
    share = _share(record)
    counts = [share if chunk.tokens is None else float(chunk.tokens) for chunk in record.chunks]
    if not is_chunk_estimated(record):
        counts[-1] += max(0.0, (record.output_tokens or 0) - sum(counts))
    elif record.output_tokens is not None:
        counts = [record.output_tokens / len(counts)] * len(counts)
    for chunk, count in zip(record.chunks, counts, strict=True):
        yield chunk.time, count


def _share(record: RequestRecord) -> float:
    """Tokens of a chunk whose server did not tell: as many in each, and at least one."""
    return max(1.0, (record.output_tokens or 0) / max(1, len(record.chunks)))


def _streams(record: RequestRecord) -> list[list[Chunk]]:
    if not any(chunk.choice for chunk in record.chunks):
        return [record.chunks]
    streams: dict[int, list[Chunk]] = {}
    for chunk in record.chunks:
        streams.setdefault(chunk.choice, []).append(chunk)
    return list(streams.values())


def _whole_answer(record: RequestRecord) -> float | None:
    return record.done if record.succeeded else None


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _rate(amount: float | None, seconds: float | None) -> float | None:
    return None if amount is None or not seconds or seconds <= 0 else amount / seconds
