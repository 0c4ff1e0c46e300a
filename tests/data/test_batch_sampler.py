"""Batches of supervised training: order, epochs, and rows that are left out."""

import numpy as np
import pytest

from areal_like.data import batch_sampler, row_order
from areal_like.data.batch_sampler import BatchSampler
from areal_like.data.row_table import InspectedRow, RowTable


class Inspected:
    """Rows of which some are left out."""

    def __init__(self, num_rows: int, left_out: frozenset[int] = frozenset()) -> None:
        self.table, self._left_out = RowTable(num_rows), left_out

    def rows(self, sampler: BatchSampler, step: int) -> list[int]:
        while unknown := sampler.unknown(step):
            for row in unknown:
                assert self.table.add(InspectedRow(row, row + 1, row in self._left_out)), "once"
        rows: list[int] = sampler.rows(step).tolist()
        return rows


def batches(
    num_rows: int, batch_size: int, steps: int, *, shuffle: bool = True, drop_last: bool = False, seed: int = 3
) -> list[list[int]]:
    data = Inspected(num_rows)
    sampler = BatchSampler(data.table, batch_size, shuffle, drop_last, seed)
    return [data.rows(sampler, step) for step in range(steps)]


def test_every_epoch_has_every_row_once_in_another_order():
    drawn = batches(10, 4, 6)
    epochs = [[row for batch in part for row in batch] for part in (drawn[:3], drawn[3:])]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert batches(10, 4, 1, seed=4) != drawn[:1] == batches(10, 4, 1)


def test_drop_last_omits_an_incomplete_last_batch():
    assert batches(10, 4, 3, shuffle=False, drop_last=True)[1:] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert batches(10, 4, 4, shuffle=False)[1:] == [[4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


def test_an_order_is_drawn_once_in_an_epoch(monkeypatch):
    """That of a million rows takes longer than a step."""
    drawn: list[int] = []

    def epoch_order(seed: int, epoch: int, num_rows: int, shuffle: bool) -> np.ndarray:
        drawn.append(epoch)
        return row_order.epoch_order(seed, epoch, num_rows, shuffle)

    monkeypatch.setattr(batch_sampler, "epoch_order", epoch_order)
    batches(10, 2, 10)
    assert drawn == [0, 1]


def test_data_position_and_step_number_may_differ():
    data = Inspected(10)
    sampler = BatchSampler(data.table, 4, shuffle=True, drop_last=False, seed=3)
    sampler.begin(step=5, first_epoch=0, drawn=2)
    assert [data.rows(sampler, step) for step in (5, 6)] == batches(10, 4, 4)[2:]
    assert sampler.drawn(5) == 2
    sampler.begin(step=5, first_epoch=1, drawn=0)
    assert data.rows(sampler, 5) == batches(10, 4, 4)[3]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("share", [0, 2, 3, 5, 9])
@pytest.mark.parametrize("num_rows", [40, 333, 1030])
def test_rows_that_are_left_out_are_skipped_and_the_epoch_shortened_before_its_last_batch(num_rows, share, drop_last):
    """The order of the others is that of the whole epoch."""
    left_out = frozenset(row for row in range(num_rows) if share and row % share == 0)
    size, kept = 8, num_rows - len(left_out)
    steps = kept // size if drop_last else -(-kept // size)
    data = Inspected(num_rows, left_out)
    sampler = BatchSampler(data.table, size, shuffle=True, drop_last=drop_last, seed=1)
    for epoch in range(2):
        order = [row for row in row_order.epoch_order(1, epoch, num_rows, True).tolist() if row not in left_out]
        for index in range(steps):
            step = epoch * steps + index
            assert data.rows(sampler, step) == order[index * size : (index + 1) * size]
            assert sampler.num_kept in ((None, kept) if step < steps - 1 else (kept,))
    assert sampler.steps_per_epoch == steps


def test_rows_are_inspected_shortly_before_their_use():
    data = Inspected(100_000)
    sampler = BatchSampler(data.table, 8, shuffle=True, drop_last=True, seed=1)
    for step in range(20):
        data.rows(sampler, step)
        assert data.table.num_known <= 8 * (step + 2) + row_order.AHEAD


def test_an_order_continues_with_what_was_known():
    """As after a resume: the same batches, and the same number of steps at the same step."""
    left_out = frozenset(range(0, 100, 3))
    whole = Inspected(100, left_out)
    sampler = BatchSampler(whole.table, 8, shuffle=True, drop_last=False, seed=1)
    expected = [(whole.rows(sampler, step), sampler.steps_per_epoch) for step in range(14)]
    for stop in range(14):
        first = Inspected(100, left_out)
        before = BatchSampler(first.table, 8, shuffle=True, drop_last=False, seed=1)
        for step in range(stop):
            first.rows(before, step)
        second = Inspected(100, left_out)
        second.table.restore(first.table.blobs())
        after = BatchSampler(second.table, 8, shuffle=True, drop_last=False, seed=1)
        after.num_kept = before.num_kept
        after.begin(stop, 0, stop)
        assert [(second.rows(after, step), after.steps_per_epoch) for step in range(stop, 14)] == expected[stop:]
