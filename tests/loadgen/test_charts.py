"""The charts as markup: well formed, escaped, and with every value where its axis says it is."""

import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from benchmarks import charts
from benchmarks.charts import Band, Curve, CurvePoint, Lane, Mark, Series, Stretch, table
from benchmarks.charts.scale import number, scale
from tests.loadgen.pictures import AXES, SVG, Cells, across, lines, parse, points, ticks, tooltips, up

NASTY = "<script>alert(\"x\")</script> & 'y'"
NAMES = ("title", "x_label", "y_label", "name")

EVERY_CHART: list[Callable[[str], str]] = [
    lambda name: charts.line([Series(name, [(0, 1)])], title=name, x_label=name, y_label=name, description=name),
    lambda name: charts.line(
        [Series(name, [(0, 1), (1, 2)]), Series(name, [(0, 5)], second_axis=True)],
        title=name, x_label=name, y_label=name, y2_label=name, bands=[Band(0, 1, name)], marks=[Mark(1, name)],
    ),
    lambda name: charts.histogram([1, 2, 2, 3], title=name, x_label=name, y_label=name, marks=[Mark(2, name)]),
    lambda name: charts.cdf({name: [1, 2], "b": [3]}, title=name, x_label=name, marks=[Mark(2, name)]),
    lambda name: charts.curve(
        [Curve(name, [CurvePoint(1, 2, name, url=f"/?a={name}"), CurvePoint(2, 3, name, (1, 3), (2, 4))], knee=1)],
        title=name, x_label=name, y_label=name, knee_label=name,
    ),
    lambda name: charts.bars([name, "b"], {name: [1, None], "c": [2, 3]}, title=name, x_label=name, y_label=name),
    lambda name: charts.heat_strip([1, None, 3], title=name, x_label=name, unit=name, labels=[name, "b", "c"]),
    lambda name: charts.lanes(
        [Lane(name, [Stretch(0, 0, 1)], note=name, failed=True)], [name], title=name, x_label=name, y_label=name
    ),
    lambda name: charts.pareto([CurvePoint(1, 2, name, url=f"/?a={name}")], **dict.fromkeys(NAMES, name)),
    lambda name: charts.sparkline([1, None, 2, 3], title=name),
]  # fmt: skip


@pytest.mark.parametrize("draw", EVERY_CHART)
def test_every_chart_is_named_and_escapes_its_texts(draw: Callable[[str], str]) -> None:
    root = parse(draw(NASTY))
    assert root.attrib["role"] == "img"
    assert NASTY in root.attrib["aria-label"]
    assert NASTY in (root[0].text or "")
    assert not any("script" in element.tag for element in root.iter())
    assert "<script" not in draw(NASTY)


@pytest.mark.parametrize(
    "chart",
    [
        charts.line([], **AXES),
        charts.line([Series("a", [])], **AXES),
        charts.line([Series("a", [(1, 5), (1, 5)])], **AXES),
        charts.line([Series("a", [(0, 0.0)])], x_scale="log", y_scale="log", **AXES),
        charts.histogram([], **AXES),
        charts.histogram([7, 7, 7], **AXES),
        charts.histogram([0.0], **AXES),
        charts.cdf({"a": []}, title="t", x_label="x"),
        charts.curve([Curve("a", [])], **AXES),
        charts.bars([], {}, **AXES),
        charts.lanes([], ["a"], **AXES),
        charts.lanes([Lane("a", [Stretch(0, 3, 3)])], ["a"], **AXES),
        charts.pareto([], name="n", **AXES),
        charts.heat_strip([], title="t", x_label="x"),
        charts.heat_strip([0.0, None], title="t", x_label="x"),
        charts.sparkline([], title="t"),
        charts.sparkline([None, 4.0], title="t"),
    ],
)
def test_little_data_draws_an_empty_picture(chart: str) -> None:
    parse(chart)
    assert "nan" not in chart.lower()
    assert "inf" not in chart.lower().replace("info", "")


def test_line_goes_through_its_values() -> None:
    root = parse(charts.line([Series("a", [(0, 10), (4, 30), (10, 0)])], **AXES))
    [line] = lines(root)
    expected = [(across(root, "0"), up(root, "10")), (across(root, "4"), up(root, "30"))]
    assert points(line)[:2] == [pytest.approx(place, abs=0.1) for place in expected]
    assert up(root, "30") < up(root, "10")  # more is higher
    assert "a: 30 at 4" in tooltips(root, "circle")


def test_the_second_axis_has_a_scale_of_its_own() -> None:
    series = [Series("a", [(0, 10), (10, 30)]), Series("b", [(0, 4000), (10, 1000)], second_axis=True)]
    root = parse(charts.line(series, y2_label="tokens", **AXES))
    first, second = lines(root)
    assert points(first)[1][1] == pytest.approx(up(root, "30"), abs=0.1)
    assert points(second)[0][1] == pytest.approx(up(root, "4,000"), abs=0.1)
    assert first.attrib.get("stroke-dasharray") != second.attrib.get("stroke-dasharray")  # not by colour alone


def test_a_missing_value_interrupts_the_line() -> None:
    root = parse(charts.line([Series("a", [(0, 1), (1, 2), (2, None), (3, 4), (4, 5)])], **AXES))
    assert [len(points(line)) for line in lines(root)] == [2, 2]


def test_bands_and_marks_stand_at_their_values() -> None:
    chart = charts.line(
        [Series("a", [(0, 10), (10, 30)])], bands=[Band(2, 6, "measure"), Band(20, 30, "never")],
        marks=[Mark(20, "limit")], **AXES,
    )  # fmt: skip
    root = parse(chart)
    band = tooltips(root, "rect")["measure"]
    left = float(band.attrib["x"])
    assert (left, left + float(band.attrib["width"])) == pytest.approx((across(root, "2"), across(root, "6")), abs=0.1)
    assert "never" not in tooltips(root, "rect")
    assert float(tooltips(root, "line")["limit"].attrib["y1"]) == pytest.approx(up(root, "20"), abs=0.1)


def test_a_long_series_has_no_tooltips() -> None:
    chart = charts.line([Series("a", [(x, x % 7) for x in range(2000)])], **AXES)
    assert not tooltips(parse(chart), "circle")
    assert len(points(lines(parse(chart))[0])) == 2000


def test_log_axes_give_equal_room_to_equal_ratios() -> None:
    root = parse(charts.line([Series("a", [(1, 10), (10, 100), (100, 1000)])], x_scale="log", y_scale="log", **AXES))
    (x1, y1), (x2, y2), (x3, y3) = points(lines(root)[0])
    assert (x2 - x1, y2 - y1) == pytest.approx((x3 - x2, y3 - y2), abs=0.2)


def test_time_axes_name_moments() -> None:
    start = 1_763_596_800  # 2025-11-20, midnight
    chart = charts.line([Series("a", [(start + hour * 3600, hour) for hour in range(25)])], x_scale="time", **AXES)
    labels = ticks(parse(chart), horizontal=True)
    assert {"11-20 00:00", "11-20 12:00", "11-21 00:00"} <= labels.keys()


def test_histogram_counts_every_value_once() -> None:
    values = [0.5, 1.0, 1.5, 1.9, 2.0, 9.0]
    root = parse(charts.histogram(values, bins=10, **AXES))
    bars = tooltips(root, "rect")
    assert sum(int(label.rpartition(": ")[2]) for label in bars) == len(values)
    tallest = bars["1 to 2: 3"]
    assert float(tallest.attrib["x"]) + float(tallest.attrib["width"]) == pytest.approx(across(root, "2"), abs=0.1)
    assert float(tallest.attrib["y"]) == pytest.approx(up(root, "3"), abs=0.1)


def test_cdf_climbs_from_nothing_to_everything() -> None:
    root = parse(charts.cdf({"a": [10.0, 20.0, 30.0, 40.0]}, title="t", x_label="ms"))
    corners = points(lines(root)[0])
    assert corners[0] == pytest.approx((across(root, "10"), up(root, "0")), abs=0.1)
    assert corners[-1] == pytest.approx((across(root, "40"), up(root, "100")), abs=0.1)
    assert any(corner == pytest.approx((across(root, "20"), (up(root, "40") + up(root, "60")) / 2), abs=0.2)
               for corner in corners)  # half of the values are at most 20  # fmt: skip


def test_the_limit_of_a_cdf_is_named_below_where_no_curve_ends() -> None:
    root = parse(charts.cdf({"a": [10.0, 20.0]}, title="t", x_label="ms", marks=[Mark(20, "SLO")]))
    label = next(one for one in root.iter(f"{SVG}text") if one.text == "SLO")
    assert up(root, "20") < float(label.attrib["y"]) < up(root, "0")


def test_a_large_cdf_is_thinned_out_and_keeps_its_ends() -> None:
    chart = charts.cdf({"a": [float(value) for value in range(100_000)]}, title="t", x_label="ms")
    corners = points(lines(parse(chart))[0])
    assert len(corners) < 1000
    assert corners[-1][0] == pytest.approx(across(parse(chart), "100,000"), abs=0.1)


def test_a_long_legend_takes_several_rows() -> None:
    names = [f"run-0123456789abcdef{place}" for place in range(6)]
    root = parse(charts.cdf({name: [1.0, 2.0] for name in names}, title="t", x_label="ms"))
    places = [(float(one.attrib["x"]), float(one.attrib["y"])) for one in root.iter(f"{SVG}text") if one.text in names]
    assert len({y for _, y in places}) == 3  # of two each
    assert max(x for x, _ in places) + 6 * len(names[0]) < 600
    top = -float(root.attrib["viewBox"].split()[1])
    assert top > 0 and min(y for _, y in places) > 20 - top  # below the title


def test_a_legend_leaves_room_for_chinese_letters() -> None:
    names = ["生成的词元", "提示的词元"]
    root = parse(charts.line([Series(name, [(0, 1)]) for name in names], **AXES))
    first, second = (float(one.attrib["x"]) for one in root.iter(f"{SVG}text") if one.text in names)
    assert second - 32 > first + 13 * len(names[0])  # its swatch begins behind five letters of 13 px


def test_labels_of_neighbouring_marks_do_not_cover_each_other() -> None:
    marks = [Mark(20, "baseline"), Mark(20.1, "gate")]
    root = parse(charts.line([Series("a", [(0, 10), (10, 30)])], marks=marks, **AXES))
    first, second = (one for one in root.iter(f"{SVG}text") if one.text in ("baseline", "gate"))
    assert float(second.attrib["x"]) > float(first.attrib["x"]) + 6 * len("baseline")


def test_a_mark_far_beyond_all_values_is_named_and_does_not_stretch_the_axis() -> None:
    far = [Mark(2000, "SLO")]
    across_axis = parse(charts.cdf({"a": [10.0, 40.0]}, title="t", x_label="ms", marks=far))
    assert "SLO →" in {one.text for one in across_axis.iter(f"{SVG}text")}
    assert "SLO" not in tooltips(across_axis, "line")
    assert "40" in ticks(across_axis, horizontal=True)
    up_axis = parse(charts.line([Series("a", [(0, 10), (1, 40)])], marks=[*far, Mark(50, "near")], **AXES))
    assert "SLO ↑" in {one.text for one in up_axis.iter(f"{SVG}text")}
    assert "near" in tooltips(up_axis, "line")
    assert "2,000" not in ticks(up_axis, horizontal=False)


def test_long_names_of_bars_are_broken_into_lines() -> None:
    names = ["timeout_connect", "timeout_total", "stream_truncated", "http_5xx", "cancelled", "dns", "parse", "tls"]
    root = parse(charts.bars(names, {"requests": [1] * len(names)}, **AXES))
    assert {"timeout", "connect", "truncated"} <= ticks(root, horizontal=True).keys()
    few = parse(charts.bars(names[:2], {"requests": [1, 2]}, **AXES))
    assert "timeout_connect" in ticks(few, horizontal=True)


def test_counts_have_no_fractions_on_their_axes() -> None:
    root = parse(charts.line([Series("a", [(1, 3), (2, 4)])], **AXES))
    assert all("." not in label for label in {*ticks(root, horizontal=True), *ticks(root, horizontal=False)})


def test_a_histogram_of_whole_numbers_names_the_numbers() -> None:
    root = parse(charts.histogram([8, 8, 9, 11], whole=True, **AXES))
    bars = tooltips(root, "rect")
    assert {"8: 2", "9: 1", "10: 0", "11: 1"} == set(bars)
    eight = bars["8: 2"]
    assert float(eight.attrib["x"]) + float(eight.attrib["width"]) / 2 == pytest.approx(across(root, "8"), abs=0.1)
    twin = Cells(table.histogram([float(n) for n in range(100)], whole=True, bins=10, **AXES)).rows
    assert twin[1] == ["0 to 9", "10"]


def test_bars_begin_at_zero() -> None:
    root = parse(charts.bars(["p", "q"], {"a": [10.0, 20.0], "b": [None, 5.0]}, **AXES))
    bars = tooltips(root, "rect")
    assert set(bars) == {"p, a: 10", "q, a: 20", "q, b: 5"}
    for label, value in (("p, a: 10", "10"), ("q, a: 20", "20"), ("q, b: 5", "5")):
        top, height = float(bars[label].attrib["y"]), float(bars[label].attrib["height"])
        assert (top, top + height) == pytest.approx((up(root, value), up(root, "0")), abs=0.1)


def test_heat_is_deepest_at_the_greatest_value() -> None:
    cells = tooltips(parse(charts.heat_strip([0, 5, 10, None], title="t", x_label="s")), "rect")
    depth = {label: float(cell.attrib["fill-opacity"]) for label, cell in cells.items()}
    assert depth["2: 10"] == 1
    assert depth["0: 0"] < depth["1: 5"] < depth["2: 10"]
    assert depth["3: no value"] == 0


def test_sparkline_ends_with_its_last_value() -> None:
    root = parse(charts.sparkline([3, 1, 2], title="TTFT"))
    assert root.attrib["aria-label"] == "TTFT: from 3 to 2"
    [dot] = tooltips(root, "circle").values()
    assert (float(dot.attrib["cx"]), float(dot.attrib["cy"])) == pytest.approx(points(lines(root)[0])[-1], abs=0.1)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 100], ["0", "20", "40", "60", "80", "100"]),
        ([0, 15], ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5", "15.0"]),
        ([0.001, 0.0049], ["0.001", "0.002", "0.003", "0.004", "0.005"]),
        ([-3, 3], ["-3", "-2", "-1", "0", "1", "2", "3"]),
        ([0, 40_000], ["0", "10,000", "20,000", "30,000", "40,000"]),
    ],
)
def test_ticks_are_round_and_say_what_they_are(values: list[float], labels: list[str]) -> None:
    axis = scale("linear", values, start=0, end=100)
    assert [label for _, label in axis.ticks()] == labels
    for place, label in axis.ticks():
        assert place == pytest.approx(float(label.replace(",", "")))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12345.678, "12,346"),
        (0.12345, "0.1235"),
        (2.5, "2.5"),
        (1e-12, "0"),
        (-1e-12, "0"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_the_twin_of_a_line_has_a_row_for_each_x() -> None:
    series = [Series("a", [(0, 1), (1, None)]), Series("b", [(1, 4), (2, 5)])]
    rows = Cells(table.line(series, title="t", x_label="s")).rows
    assert rows == [["s", "a", "b"], ["0", "1", "–"], ["1", "–", "4"], ["2", "–", "5"]]


def test_the_twin_of_a_distribution_has_its_bins_or_percentiles() -> None:
    assert Cells(table.histogram([1, 2, 2.5, 9], title="t", x_label="ms", y_label="n", bins=4)).rows[1:3] == [
        ["0 to 2", "1"], ["2 to 4", "2"],
    ]  # fmt: skip
    rows = dict(Cells(table.cdf({"a": [float(value) for value in range(101)]}, title="t")).rows[1:])
    assert (rows["0"], rows["50"], rows["99.9"], rows["100"]) == ("0", "50", "99.9", "100")
    assert Cells(table.cdf({"a": [], "b": [7.0]}, title="t")).rows[1] == ["0", "–", "7"]


def test_the_other_twins_have_their_figures() -> None:
    one = Curve("c", [CurvePoint(100, 20, "1"), CurvePoint(200, 40, "2")], knee=1)
    assert Cells(table.curve([one], title="t", x_label="x", y_label="y")).rows[1:] == [
        ["1", "c", "100", "20", ""],
        ["2", "c", "200", "40", "knee"],
    ]
    assert Cells(table.bars(["p"], {"a": [1.0], "b": [None]}, title="t", x_label="x")).rows[1] == ["p", "1", "–"]
    assert Cells(table.heat_strip([1.0, None], title="t", x_label="s")).rows[1:] == [["0", "1"], ["1", "–"]]


def test_a_figure_joins_a_chart_and_its_twin_and_escapes() -> None:
    twin = table.table([NASTY], [[NASTY]], title=NASTY)
    html = table.figure(charts.sparkline([1, 2], title=NASTY), twin, label=NASTY, summary=NASTY)
    figure = ElementTree.fromstring(html)
    assert len(figure.findall(f".//{SVG}svg")) == len(figure.findall(".//table")) == 1
    assert "<script" not in html


def test_without_the_style_sheet_colours_have_a_fallback() -> None:
    chart = charts.line([Series("a", [(0, 1), (1, 2)])], **AXES)
    for root in parse(chart).iter():
        for value in root.attrib.values():
            assert "var(--" not in value or ", #" in value
    for name in ("--chart-1", "--chart-6", "--chart-grid", "--chart-mark", "--chart-surface"):
        assert f"{name}: light-dark(" in charts.stylesheet()
