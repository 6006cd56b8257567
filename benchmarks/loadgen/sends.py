"""What a schedule asked for and what was sent of it. A closed loop has no schedule, and none of these figures."""

from collections.abc import Iterable

import msgspec

from benchmarks.loadgen.records import Phase, RequestRecord


class Sends(msgspec.Struct, frozen=True):
    """Seconds count from the first due request, the warm-up left out."""

    requests: int
    planned: float  # to the last due request
    took: float  # to its send


def achieved_send_ratio(records: Iterable[RequestRecord]) -> float | None:
    """How much of the rate that the schedule asked for was sent, at most 1: the length of the schedule over the time
    that sending it took. None in a closed loop, and for a schedule of no length.
    """
    sends = _sends(records)
    return min(1.0, sends.planned / sends.took) if sends else None


def send_rate(records: Iterable[RequestRecord]) -> dict[str, float | None]:
    """Requests per second, offered and achieved; their ratio is the one above."""
    sends = _sends(records)
    if sends is None:
        return {"offered": None, "achieved": None}
    gaps = sends.requests - 1
    return {"offered": gaps / sends.planned, "achieved": gaps / sends.took}


def _sends(records: Iterable[RequestRecord]) -> Sends | None:
    pairs = [
        (record.intended, record.sent)
        for record in records
        if record.intended is not None and record.sent is not None and record.phase is not Phase.WARMUP
    ]
    if not pairs:
        return None
    start = min(intended for intended, _ in pairs)
    planned = max(intended for intended, _ in pairs) - start
    return Sends(len(pairs), planned, max(sent for _, sent in pairs) - start) if planned > 0 else None
