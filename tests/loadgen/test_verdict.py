"""Whether a run failed: by how its last requests ended, but for those that the client itself gave up."""

import msgspec
import pytest

from benchmarks.loadgen.records import ErrorClass, Phase, RequestRecord, RunResult
from benchmarks.loadgen.verdict import failure
from tests.loadgen.sample_runs import small_run

REFUSED = (ErrorClass.CONNECT, "refused")
GIVEN_UP = (ErrorClass.CANCELLED, "given up")
WELL = (ErrorClass.NONE, "")


def run_of(*endings: tuple[ErrorClass, str], phase: Phase = Phase.MEASURE, sent: bool = True) -> RunResult:
    """Requests that were sent one after the other, listed in another order."""
    records = [
        RequestRecord(
            index=number,
            sent=float(number) if sent else None,
            done=number + 0.5,
            error=error,
            error_text=text,
            phase=phase,
        )
        for number, (error, text) in enumerate(endings)
    ]
    return msgspec.structs.replace(small_run(), records=records[::-1])


@pytest.mark.parametrize(
    "endings",
    [
        [WELL],
        [REFUSED] * 9 + [WELL] + [REFUSED] * 4,
        [WELL] * 9 + [GIVEN_UP] * 6,
        [WELL] + [REFUSED] * 4 + [GIVEN_UP] * 6,
    ],
    ids=["one answer", "an answer among the last", "the grace ended", "errors, but an answer among the last"],
)
def test_a_target_that_answered_to_the_end(endings: list[tuple[ErrorClass, str]]) -> None:
    assert failure(run_of(*endings)) == ""


def test_a_target_that_died() -> None:
    words = "the last 5 requests failed, most with connect: refused"
    other = (ErrorClass.STREAM_TRUNCATED, "cut")
    assert failure(run_of(*[WELL] * 9, other, other, *[REFUSED] * 3)) == words
    assert failure(run_of(*[WELL] * 9, *[REFUSED] * 5, *[GIVEN_UP] * 5)) == words, "hidden by what was given up"
    assert failure(run_of(REFUSED)) == "the last 1 requests failed, most with connect: refused"


def test_a_run_without_an_answer() -> None:
    assert failure(run_of()) == "nothing was sent"
    assert failure(run_of(GIVEN_UP, sent=False)) == "nothing was sent"
    assert failure(run_of(WELL, phase=Phase.WARMUP)) == "nothing was sent"
    assert failure(run_of(*[GIVEN_UP] * 3)) == "nothing was answered: all 3 requests were given up"
