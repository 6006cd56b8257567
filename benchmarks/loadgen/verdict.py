"""Whether a run that came to its end is worth anything: one whose target died is not, however it was started."""

from benchmarks.loadgen.records import ErrorClass, Phase, RequestRecord, RunResult

LAST_REQUESTS = 5  # a run whose last requests all failed has lost its target


def failure(result: RunResult) -> str:
    """Why the run failed, in words; "" for one whose target answered to the end.

    Requests that were given up, by the grace behind a duration or by --cancel-fraction, say nothing of the target.
    """
    sent = [record for record in result.records if record.sent is not None and record.phase is not Phase.WARMUP]
    if not sent:
        return "nothing was sent"
    ended = [record for record in sent if record.error is not ErrorClass.CANCELLED]
    if not ended:
        return f"nothing was answered: all {len(sent)} requests were given up"
    last = sorted(ended, key=lambda record: record.sent or 0.0)[-LAST_REQUESTS:]
    if any(record.succeeded for record in last):
        return ""
    return f"the last {len(last)} requests failed, most with {_most_common(last)}"


def _most_common(failed: list[RequestRecord]) -> str:
    texts = [f"{record.error}: {record.error_text}" for record in failed]
    return max(dict.fromkeys(texts), key=texts.count)
