"""Rows in memory that does not move: what a recorded step finds there."""

import pytest
import torch

from kernels.packed import PAD_TOKENS, DeviceRows, RecordedRows

TOKENS, MOST_ROWS, DUMMY = 300, 40, 99


@pytest.fixture
def rows() -> RecordedRows:
    return RecordedRows(TOKENS, MOST_ROWS, DUMMY, torch.device("cpu"))


def lengths_of(rows: RecordedRows) -> list[int]:
    assert rows.counts is not None
    return rows.row_start[: int(rows.counts[1]) + 1].diff().tolist()


def test_rows_lie_as_they_do_in_a_step_that_is_not_recorded(rows: RecordedRows) -> None:
    slots, lengths = [7, 3, 5, 8, 2], [1, 1, 17, 1, 40]
    ids = list(range(100, 160))
    rows.fill(slots, lengths, ids)

    plain = DeviceRows.of_lengths(torch.tensor(slots, dtype=torch.int32), lengths)
    assert rows.counts is not None and rows.counts[0] == plain.singles == 2
    assert torch.equal(rows.slots[:5], plain.slots)
    assert torch.equal(rows.row_start[:6], plain.row_start)
    assert torch.equal(rows.row_of[:60], plain.row_of)
    assert rows.ids[:60].tolist() == ids


def test_what_is_left_over_is_short_rows_of_the_dummy(rows: RecordedRows) -> None:
    rows.fill([4], [20], list(range(20)))
    lengths = lengths_of(rows)
    assert lengths[0] == 20 and sum(lengths) == TOKENS
    assert 0 < max(lengths[1:]) <= PAD_TOKENS
    assert rows.slots[1:].tolist() == [DUMMY] * (MOST_ROWS - 1)
    assert rows.row_of.tolist() == [row for row, length in enumerate(lengths) for _ in range(length)]
    assert not rows.ids[20:].any()


def test_nothing_is_left_of_the_rows_before(rows: RecordedRows) -> None:
    rows.fill(list(range(30)), [10] * 30, list(range(1000, 1300)))
    assert lengths_of(rows) == [10] * 30
    rows.fill([1], [1], [5])
    fresh = RecordedRows(TOKENS, MOST_ROWS, DUMMY, torch.device("cpu"))
    fresh.fill([1], [1], [5])
    for name in ("slots", "row_start", "row_of", "ids", "counts"):
        assert torch.equal(getattr(rows, name), getattr(fresh, name)), name


def test_more_than_was_reserved_is_refused(rows: RecordedRows) -> None:
    with pytest.raises(ValueError, match="301 tokens in 1 rows: there is place for 300 in 40"):
        rows.fill([1], [301], [0] * 301)
    with pytest.raises(ValueError, match="300 tokens in 41 rows"):
        rows.fill(list(range(41)), [1] * 40 + [260], [0] * 300)


def test_only_rows_of_one_token_each_are_lone(rows: RecordedRows) -> None:
    slots = torch.arange(3, dtype=torch.int32)
    assert DeviceRows.single_tokens(slots).lone and DeviceRows.of_lengths(slots, [1, 1, 1]).lone
    assert not DeviceRows.of_lengths(slots, [1, 1, 2]).lone
    assert not rows.lone, "what it is filled with may have longer ones"


@pytest.mark.parametrize("lengths", [[1, 5, 2, 1, 3], [1, 1], [7]], ids=str)
def test_the_ends_of_rows_are_their_last_two_positions(lengths: list[int]) -> None:
    rows = DeviceRows.of_lengths(torch.arange(len(lengths), dtype=torch.int32) + 10, lengths)
    at, ends = rows.ends(lengths)
    last = (rows.row_start[1:] - 1).tolist()
    kept = [[end] if length == 1 else [end - 1, end] for end, length in zip(last, lengths, strict=True)]
    assert at.tolist() == [position for positions in kept for position in positions]
    assert [at[end - 1].item() for end in ends.row_start[1:].tolist()] == last
    assert ends.row_of.tolist() == [row for row, positions in enumerate(kept) for _ in positions]
    assert ends.slots.tolist() == rows.slots.tolist()
