"""Records from the lists that vLLM writes with `--save-detailed`: an entry for each request in every list."""

from collections.abc import Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from benchmarks.loadgen.imports.fields import Fields
from benchmarks.loadgen.records import Chunk, ErrorClass, RequestRecord

LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
_PHRASES = {status.phrase: status for status in HTTPStatus}


def records_of(source: Fields) -> list[RequestRecord]:
    """Empty unless all of the lists are there: without the times of sending, nothing has a place in time.

    Raises BadFile for lists of different lengths, or with entries that are no numbers.
    """
    lists = {name: source.items(name) for name in LISTS}
    if any(not values for values in lists.values()):
        return []
    columns = {name: values or [] for name, values in lists.items()}
    count = len(columns["start_times"])
    for name, values in columns.items():
        if len(values) != count:
            raise source.bad(name, f"has {len(values)} entries, start_times has {count}")
    errors = source.items("errors") or [""] * count
    texts = source.items("generated_texts") or [None] * count
    for name, values in (("errors", errors), ("generated_texts", texts)):
        if len(values) != count:
            raise source.bad(name, f"has {len(values)} entries, start_times has {count}")
    try:
        start = min(float(one) for one in columns["start_times"])
        rows = zip(*columns.values(), errors, texts, strict=True)
        return [_record(place, start, *row) for place, row in enumerate(rows)]
    except (TypeError, ValueError) as error:
        raise source.bad("/".join(LISTS), f"an entry is not a number: {error}") from None


def _record(
    index: int,
    start: float,
    prompt_tokens: Any,
    output_tokens: Any,
    ttft: Any,
    gaps: Sequence[Any],
    sent_at: Any,
    error: Any,
    text: Any,
) -> RequestRecord:
    sent = float(sent_at) - start
    record = RequestRecord(index=index, sent=sent, prompt_tokens=int(prompt_tokens), text=text or None)
    if error:
        record.error, record.error_text = _error_class(str(error)), str(error)
        record.done = sent  # nobody says when it failed; so early it is in nobody's way
        return record
    arrivals = list(accumulate((float(gap) for gap in gaps), initial=sent + float(ttft)))
    record.chunks = [Chunk(time, None) for time in arrivals]
    record.done = arrivals[-1]
    record.output_tokens = int(output_tokens)
    return record


def _error_class(text: str) -> ErrorClass:
    """vLLM keeps the reason phrase of a refused request, and else the traceback of what its client raised."""
    status = _PHRASES.get(text.strip())
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        return ErrorClass.HTTP_429
    if status is not None:
        return ErrorClass.HTTP_5XX if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ErrorClass.HTTP_4XX
    if "Timeout" in text:
        return ErrorClass.TIMEOUT_TOTAL
    return ErrorClass.CONNECT if "ClientConnector" in text else ErrorClass.CLIENT_BUG
