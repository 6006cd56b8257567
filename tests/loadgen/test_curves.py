"""The charts of a sweep: knee, error bars, and the frontier."""

import pytest

from benchmarks import charts
from benchmarks.charts import Curve, CurvePoint, table
from tests.loadgen.pictures import AXES, SVG, Cells, across, lines, parse, points, ticks, tooltips, up


def test_the_knee_is_at_its_point_and_points_lead_to_their_runs() -> None:
    one = Curve(
        "c", [CurvePoint(100, 20, "1", url="/run/1"), CurvePoint(200, 40, "2"), CurvePoint(250, 90, "4")], knee=1
    )
    root = parse(charts.curve([one], **AXES))
    knee = tooltips(root, "circle")["knee"]
    assert float(knee.attrib["cy"]) == pytest.approx(up(root, "40"), abs=0.1)
    assert (float(knee.attrib["cx"]), float(knee.attrib["cy"])) == pytest.approx(points(lines(root)[0])[1], abs=0.1)
    assert [link.attrib["href"] for link in root.iter(f"{SVG}a")] == ["/run/1"]


def test_error_bars_end_where_the_intervals_do_and_are_cut_off_without_a_cap() -> None:
    near = CurvePoint(100, 20, "1", x_interval=(50, 150), y_interval=(10, 30))
    far = CurvePoint(200, 40, "2", y_interval=(-500, 40_000))
    root = parse(charts.curve([Curve("c", [near, far])], **AXES))
    bars = {words: path.attrib["d"] for words, path in tooltips(root, "path").items()}
    across_50, across_150 = (f"{across(root, tick):.1f} {up(root, '20'):.1f}" for tick in ("50", "150"))
    assert bars["1: 50 to 150, 95 % interval"].startswith(f"M{across_50}L{across_150}")
    assert bars["1: 10 to 30, 95 % interval"].count("h") == 2
    assert bars["2: -500 to 40,000, 95 % interval"].count("h") == 0
    assert "50" in ticks(root, horizontal=False)  # the axis is of the points, not of a wild interval
    assert "60" not in ticks(root, horizontal=False)


def test_the_frontier_has_every_point_that_no_other_one_beats() -> None:
    places = [(90, 100), (80, 350), (70, 300), (60, 600), (60, 500), (30, 590), (20, 600), (10, 700)]
    points_ = [CurvePoint(x, y, str(place)) for place, (x, y) in enumerate(places)]
    root = parse(charts.pareto(points_, name="rate", **AXES))
    drawn = {words.partition(":")[0]: one for words, one in tooltips(root, "circle").items()}
    assert [name for name, one in drawn.items() if one.attrib["class"] == "point"] == [
        f"rate, {n}" for n in (0, 1, 3, 7)
    ]
    [line] = lines(root)
    assert [x for x, _ in points(line)] == [float(drawn[f"rate, {n}"].attrib["cx"]) for n in (7, 3, 1, 0)]
    legend = [one for one in root.iter(f"{SVG}text") if one.text in ("frontier", "beaten by another load")]
    assert len({one.attrib["y"] for one in legend}) == 1  # beside each other
    assert float(legend[1].attrib["x"]) > float(legend[0].attrib["x"]) + 8 * len("frontier")
    notes = [row[-1] for row in Cells(table.pareto(points_, name="rate", **AXES)).rows[1:]]
    assert [place for place, note in enumerate(notes) if note.startswith("frontier")] == [0, 1, 3, 7]
