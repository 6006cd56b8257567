"""What was measured at one start-up is taken at the next, unless it is of other ways or rows."""

import json

import pytest

from inference.engine.library_choice import GUESS, TUNED_ROWS, nearest
from inference.engine.measuring import MEASURED_ROWS
from inference.engine.product_choice import Choices

KINDS = {"up": ["own", "library"], "head": ["own", "library"]}


def kept(rows: int = len(MEASURED_ROWS), tuned: int = len(TUNED_ROWS), **ways: str) -> dict:
    best = {kind: [ways.get(kind, "own")] * rows for kind in KINDS}
    return {"ways": best, "algorithms": {"1x64x16": ["ab"] * tuned}}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "choices.json"


def test_a_first_start_has_nothing(file):
    assert not Choices(file, KINDS).complete


def test_what_was_measured_is_kept(file):
    measured = kept()
    measured["ways"]["up"][MEASURED_ROWS.index(64)] = "library"
    file.write_text(json.dumps(measured))
    Choices(file, KINDS).save()
    choices = Choices(file, KINDS)
    assert choices.complete
    assert [choices.best("up", rows) for rows in (48, 49, 64, 65)] == ["own", "library", "library", "own"]
    assert choices.best("head", 10 * MEASURED_ROWS[-1]) == "own"
    assert choices.algorithms == measured["algorithms"]


@pytest.mark.parametrize(
    "other", [kept(rows=3), kept(tuned=3), kept(up="renamed"), {"ways": {}, "algorithms": {}}], ids=lambda _: ""
)
def test_what_is_of_other_rows_or_ways_is_measured_again(file, other):
    file.write_text(json.dumps(other))
    assert not Choices(file, KINDS).complete


@pytest.mark.parametrize(
    ("rows", "measured"),
    [(64, None), (128, 128), (310, 320), (320, 320), (321, None), (384, 384), (408, None), (5000, None)],
)
def test_an_algorithm_is_for_about_the_rows_that_it_was_measured_with(rows, measured):
    best = [f"of {rows}" for rows in TUNED_ROWS]
    assert nearest(best, rows) == (f"of {measured}" if measured else GUESS)
    assert nearest([], rows) == GUESS
