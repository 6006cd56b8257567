"""Which requests of a load are measured: not those while it grows or fades."""

from collections.abc import Sequence

from benchmarks.loadgen import metrics
from benchmarks.loadgen.options import Profile
from benchmarks.loadgen.records import Phase, RequestRecord

Window = tuple[float, float]


def assign_phases(records: Sequence[RequestRecord], profile: Profile, ramp_seconds: float) -> Window | None:
    """Set each record's phase, and return the measured window of a closed loop (None: the whole load).

    Where nothing would be left to measure, as in a run of a request for each user, everything is measured.
    """
    window = metrics.closed_loop_window(records) if profile.users else None
    end = max((_moment(record) for record in records), default=0.0)
    fades = end - profile.cooldown_seconds if profile.cooldown_seconds else float("inf")
    load = [record for record in records if record.phase is not Phase.WARMUP]
    for record in load:
        moment = _moment(record)
        if moment < profile.warmup_seconds:
            record.phase = Phase.WARMUP
        elif moment < ramp_seconds:
            record.phase = Phase.RAMP
        elif moment > fades or (window is not None and moment > window[1]):
            record.phase = Phase.DRAIN
    if any(record.phase is Phase.MEASURE for record in load):
        return window
    for record in load:
        if record.phase is not Phase.WARMUP:
            record.phase = Phase.MEASURE
    return None


def _moment(record: RequestRecord) -> float:
    """When a request was due, or was sent where nothing said when."""
    for time in (record.intended, record.sent, record.done):
        if time is not None:
            return time
    return 0.0
