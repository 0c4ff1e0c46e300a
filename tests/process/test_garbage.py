"""Garbage collection in a process that has started."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from areal_like.process import garbage


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def usual_collections() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def num_collections() -> int:
    return sum(int(each["collections"]) for each in gc.get_stats())


def collections_while_in_flight() -> int:
    """While as many objects come into use and stay there as requests in flight have."""
    before = num_collections()
    held = [[number] for number in range(garbage.NEW_OBJECTS // 2)]
    assert held
    return num_collections() - before


def test_requests_in_flight_start_no_collection() -> None:
    assert collections_while_in_flight() > 0
    garbage.settle()
    gc.collect()
    assert collections_while_in_flight() == 0


def test_what_was_made_before_is_not_looked_through_and_later_cycles_are_freed() -> None:
    garbage.settle()
    assert gc.get_freeze_count() > 0
    later = weakref.ref(Cycle())
    held = [[number] for number in range(2 * garbage.NEW_OBJECTS)]
    assert held and later() is None
