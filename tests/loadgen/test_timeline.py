"""The timeline: each request as a lane with its waits, its decode, and the gaps that a reader notices."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks import charts
from benchmarks.charts import Lane, Stretch, table
from benchmarks.loadgen import exports, timeline
from benchmarks.loadgen.records import Chunk, ErrorClass, RequestRecord
from tests.loadgen.pictures import AXES, SVG, Cells, across, parse, ticks
from tests.loadgen.sample_runs import noisy_run, small_run


def test_lanes_stand_one_below_the_other_at_their_times() -> None:
    rows = [
        Lane("a", [Stretch(0, 0, 2), Stretch(1, 2, 10), Stretch(2, 4, 6)], note="all well"),
        Lane("b", [Stretch(0, 5, 7)], failed=True),
    ]
    root = parse(charts.lanes(rows, ["wait", "work", "gap"], **AXES))
    first, second = (one for one in root.iter(f"{SVG}g"))
    assert first.findtext(f"{SVG}title") == "a from 0 s: wait 2 s, work 8 s, gap 2 s; all well"
    wait, work, gap = first.iter(f"{SVG}rect")
    assert float(wait.attrib["x"]) == pytest.approx(across(root, "0"), abs=0.1)
    assert float(work.attrib["x"]) + float(work.attrib["width"]) == pytest.approx(across(root, "10"), abs=0.1)
    assert float(gap.attrib["x"]) == pytest.approx(across(root, "4"), abs=0.1)
    assert len({one.attrib["fill"] for one in (wait, work, gap)}) == 3
    [below] = second.iter(f"{SVG}rect")
    assert float(below.attrib["y"]) > float(wait.attrib["y"]) + float(wait.attrib["height"])
    assert not list(first.iter(f"{SVG}path")) and list(second.iter(f"{SVG}path"))  # the cross of what failed
    assert Cells(table.lanes(rows, ["wait", "work", "gap"], title="t", x_label="request")).rows == [
        ["request", "from, s", "wait, s", "work, s", "gap, s", "end"],
        ["a", "0", "2", "8", "2", "all well"],
        ["b", "5", "2", "–", "–", ""],
    ]


def test_many_lanes_make_a_picture_of_bounded_height() -> None:
    def height(count: int) -> float:
        rows = [Lane(str(place), [Stretch(0, place, place + 1)]) for place in range(count)]
        return float(parse(charts.lanes(rows, ["a"], **AXES)).attrib["viewBox"].split()[3])

    assert height(10) < height(40) < height(300) == height(600) < 1000


def figure(html: str) -> tuple[ElementTree.Element, list[list[str]]]:
    """The picture and the rows of its table."""
    return next(ElementTree.fromstring(html).iter(f"{SVG}svg")), Cells(html).rows


def test_a_request_is_a_lane_from_its_schedule_to_its_end() -> None:
    record = RequestRecord(
        index=7, user=3, intended=1.0, sent=1.5, done=3.1, output_tokens=4, finish_reason="stop",
        chunks=[Chunk(time, 1) for time in (2.0, 2.05, 2.25, 3.0)],
    )  # fmt: skip
    lane = timeline.lane(record, stall_ms=500)
    assert lane.name == "7 of user 3"
    assert lane.stretches == [
        Stretch(timeline.LATE, 1.0, 1.5),
        Stretch(timeline.WAIT, 1.5, 2.0),
        Stretch(timeline.DECODE, 2.0, 3.0),
        Stretch(timeline.STALL, 2.25, 3.0),
        Stretch(timeline.LONG_GAP, 2.05, 2.25),
    ]
    assert (lane.note, lane.failed) == ("4 tokens, stop", False)


def test_gaps_are_between_chunks_of_one_choice() -> None:
    chunks = [Chunk(1.0, 1, choice=0), Chunk(1.05, 1, choice=1), Chunk(1.3, 1, choice=0), Chunk(1.06, 1, choice=1)]
    lane = timeline.lane(RequestRecord(index=0, sent=0.5, done=1.4, chunks=chunks))
    assert [one for one in lane.stretches if one.kind >= timeline.LONG_GAP] == [Stretch(timeline.LONG_GAP, 1.0, 1.3)]


def test_what_came_whole_or_not_at_all_is_one_wait() -> None:
    whole = timeline.lane(RequestRecord(index=0, sent=0.5, done=1.5))
    assert whole.stretches == [Stretch(timeline.WAIT, 0.5, 1.5)]
    broken = timeline.lane(RequestRecord(index=1, sent=1.0, done=2.0, error=ErrorClass.TIMEOUT_FIRST))
    assert broken.stretches == [Stretch(timeline.WAIT, 1.0, 2.0)]
    assert (broken.failed, broken.note) == (True, "timeout_first")


def test_the_longest_gaps_of_a_request_are_shown_and_no_more() -> None:
    times, time = [0.0], 0.0
    for place in range(100):
        time += 0.2 + place / 1000
        times.append(time)
    lane = timeline.lane(RequestRecord(index=0, sent=0.0, done=time, chunks=[Chunk(one, 1) for one in times]))
    gaps = [one.end - one.start for one in lane.stretches if one.kind == timeline.LONG_GAP]
    assert len(gaps) == timeline.MOST_GAPS
    assert min(gaps) == pytest.approx(0.28)


def test_the_timeline_of_many_requests_is_sampled_evenly_and_says_so() -> None:
    result = noisy_run(1, requests=900)
    picture, rows = figure(timeline.figures(result.records, result.summary)[0])
    assert len(list(picture.iter(f"{SVG}g"))) == len(rows) - 1 == timeline.MOST_LANES
    numbers = [int(row[0]) for row in rows[1:]]
    assert (numbers[0], numbers[-1]) == (0, 899)
    assert {after - before for before, after in pairwise(numbers)} <= {2, 3, 4}
    assert "300 of 900, evenly chosen" in picture.attrib["aria-label"]
    few, _ = figure(timeline.figures(result.records[:9], result.summary, of=900)[0])
    assert "9 of 900" in few.attrib["aria-label"]


def test_the_timeline_names_thresholds_and_the_measured_window() -> None:
    result = small_run()
    picture, rows = figure(timeline.figures(result.records, {**result.summary, "stalls": {"threshold_ms": 250.0}})[0])
    words = {one.text for one in picture.iter(f"{SVG}text")}
    assert {"gap over 100 ms", "stall over 250 ms", "failed", "measured"} <= words
    assert rows[0][2:] == [
        "waiting to be sent, s", "waiting for the first token, s", "decode, s", "gap over 100 ms, s",
        "stall over 250 ms, s", "end",
    ]  # fmt: skip
    assert rows[3] == ["2", "1", "–", "0.2", "0.3", "–", "0.3", "4 tokens, length"]
    assert rows[5][-1] == "http_5xx"


def test_short_requests_of_a_long_run_are_also_drawn_from_their_own_begin() -> None:
    assert len(timeline.figures(small_run().records, {})) == 1
    result = noisy_run(1, requests=200)
    _, own = timeline.figures(result.records, result.summary)
    picture, rows = figure(own)
    assert {row[1] for row in rows[1:]} == {"0"}
    longest = max(one.done - one.sent for one in result.records if one.done is not None and one.sent is not None)
    assert max(float(label) for label in ticks(picture, horizontal=True) if label[0].isdigit()) <= longest


def test_nothing_sent_is_no_timeline() -> None:
    assert timeline.figures([RequestRecord(index=0)], {}) == []


def test_the_report_has_the_timeline() -> None:
    report = exports.export(small_run(), "html").decode()
    assert 'aria-label="Timeline of the requests"' in report
    assert 'aria-label="Length of the prompts"' in report
    assert 'aria-label="Output tokens and requests in flight"' in report
