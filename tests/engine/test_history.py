"""The names of histories, and the lengths at which the states of prompts are kept."""

from inference.history import BLOCK, borders, extend, pack_ids, root, unpack_ids
from tests.engine.history_rig import ROOT


def test_borders_are_the_same_for_every_length_and_few():
    assert list(borders(1000)) == [256, 512, 768]
    assert list(borders(10_000))[: len(list(borders(3000)))] == list(borders(3000))
    assert len(list(borders(1_000_000))) < 100
    assert all(b - a <= max(BLOCK, a / 8) for a, b in zip([0, *borders(100_000)], borders(100_000), strict=False))


def test_names_depend_on_model_owner_start_and_order():
    names = {root("m", "o"), root("m", "p"), root("n", "o"), root("m", "o", "tuned"), root("mo", "")}
    assert len(names) == 5
    assert extend(extend(ROOT, [1]), [2]) != extend(extend(ROOT, [2]), [1])
    assert unpack_ids(pack_ids([0, 65535, 2**31])) == [0, 65535, 2**31]
