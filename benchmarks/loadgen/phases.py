"""Which requests of a load are measured: not those while it grows or fades."""

from collections.abc import Sequence
from math import inf

from benchmarks.loadgen.options import Profile
from benchmarks.loadgen.records import Phase, RequestRecord
from benchmarks.loadgen.windows import Window, closed_loop_window, open_loop_window


def assign_phases(records: Sequence[RequestRecord], profile: Profile, ramp_seconds: float) -> Window | None:
    """Set each record's phase, and return the measured window (None: from the first to the last that is measured).

    It begins where warm-up and ramp end. That of users ends when the first one is through, that of an open loop with
    its last send: what follows is drain. Where nothing would be left to measure, as in a run of a request for each
    user, everything is measured.
    """
    load = [record for record in records if record.phase is not Phase.WARMUP]
    planned = any(record.intended for record in load)  # or all is due at once, and sent when a slot is free
    moments = [_moment(record, planned) for record in load]
    begins = max(profile.warmup_seconds, ramp_seconds)
    ends = max(moments, default=0.0) - profile.cooldown_seconds if profile.cooldown_seconds else inf
    users = _clipped(closed_loop_window(load), begins, ends) if profile.users else None
    if users:
        ends = users[1]
    for record, moment in zip(load, moments, strict=True):
        if moment < profile.warmup_seconds:
            record.phase = Phase.WARMUP
        elif moment < ramp_seconds:
            record.phase = Phase.RAMP
        elif moment > ends:
            record.phase = Phase.DRAIN
    measured = [record for record in load if record.phase is Phase.MEASURE]
    if measured:
        return users if profile.users else open_loop_window(measured, begins)
    for record in load:
        if record.phase is not Phase.WARMUP:
            record.phase = Phase.MEASURE
    return None


def _moment(record: RequestRecord, planned: bool) -> float:
    """When a request was due, or was sent where nothing said when."""
    for time in (record.intended if planned else None, record.sent, record.intended, record.done):
        if time is not None:
            return time
    return 0.0


def _clipped(window: Window | None, begins: float, ends: float) -> Window | None:
    if window is None:
        return None
    start, end = max(window[0], begins), min(window[1], ends)
    return (start, end) if start < end else None
