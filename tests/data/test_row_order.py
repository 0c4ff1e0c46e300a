"""The order of rows is the same whenever rows are inspected, and epochs shrink by the rows that are too long."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from areal_like.data.row_order import AHEAD, RowOrder
from areal_like.data.row_table import InspectedRow, RowTable
from areal_like.process.seeds import derive_seed

SEED = 5


def expected(num_rows: int, too_long: set[int], batch_size: int, drop_last: bool, epochs: int) -> list[list[int]]:
    """The rows of each epoch, from a dataset that is read whole."""
    rows = []
    for epoch in range(epochs):
        order = np.random.Generator(np.random.PCG64(derive_seed(SEED, "data", epoch))).permutation(num_rows)
        kept = [row for row in order.tolist() if row not in too_long]
        rows.append(kept[: len(kept) // batch_size * batch_size] if drop_last else kept)
    return rows


def inspect(table: RowTable, rows: list[int], too_long: set[int]) -> None:
    for row in rows:
        table.add(InspectedRow(row, 1000 + row, row in too_long))


@st.composite
def datasets(draw):
    num_rows = draw(st.integers(1, 300))
    too_long = draw(st.sets(st.integers(0, num_rows - 1), max_size=num_rows - 1))
    batch_size = draw(st.integers(1, num_rows - len(too_long)))
    return num_rows, too_long, batch_size


@given(datasets(), st.booleans(), st.randoms(use_true_random=False), st.integers(1, 70))
def test_rows_have_the_order_of_a_dataset_that_is_read_whole(dataset, drop_last, random, at_once):
    num_rows, too_long, batch_size = dataset
    table = RowTable(num_rows)
    order = RowOrder(SEED, table, batch_size, shuffle=True, drop_last=drop_last)
    epochs = expected(num_rows, too_long, batch_size, drop_last, epochs=3)
    per_epoch = len(epochs[0])
    for number in range(3 * per_epoch):
        while not order.is_known(number):
            rows = order.unknown(number)
            assert rows, "a number that is not known has rows to inspect"
            inspect(table, random.sample(rows, min(len(rows), at_once)), too_long)
        epoch, place = divmod(number, per_epoch)
        assert (order.epoch(number), order.row(number)) == (epoch, epochs[epoch][place])
        if number >= per_epoch - batch_size:
            assert order.num_kept == num_rows - len(too_long), "known before the last batch of the first epoch"
    assert order.rows_per_epoch == per_epoch


def test_few_rows_are_inspected_before_the_first_one_is_used():
    table = RowTable(1_000_000)
    order = RowOrder(SEED, table, 16, shuffle=True, drop_last=True)
    while not order.is_known(0):
        inspect(table, order.unknown(0), set())
    assert table.num_known == 2 * 16 + AHEAD
    assert order.unknown(1) == [], "only when half of them are used"
    assert order.num_kept is None


def test_a_batch_more_than_the_rows_that_are_left_is_never_known():
    table = RowTable(10)
    order = RowOrder(SEED, table, 4, shuffle=False, drop_last=True)
    while rows := order.unknown(0):
        inspect(table, rows, set(range(7)))
    assert (order.is_known(0), table.is_complete, order.num_kept) == (False, True, 3)


def test_what_is_known_survives_a_checkpoint():
    table, restored = RowTable(5), RowTable(5)
    inspect(table, [4, 1], {1})
    restored.restore(table.blobs())
    assert (restored.num_known, restored.num_too_long, restored.hash_of(4)) == (2, 1, 1004)
    assert restored.states.tolist() == table.states.tolist()
    assert not restored.agrees(InspectedRow(4, 7, False)) and restored.agrees(InspectedRow(0, 7, False))
