"""The staleness gate: how many groups may start, compared with numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.rollout.gate import StalenessGate


@pytest.mark.parametrize(
    ("max_concurrent", "batch", "eta", "version", "running", "capacity"),
    [
        (10, 4, 2, 0, 0, 10),  # as many as may run at once
        (100, 4, 2, 0, 0, 12),  # three batches ahead
        (100, 4, 2, 5, 0, 32),
        (100, 32, 10, 0, 0, 100),
        (5, 2, 10, 0, 3, 2),
        (0, 0, 0, 0, 0, 1),  # zeros count as one
        (1000, 32, 5, 7, 0, 416),
        (10, 4, 0, 0, 0, 4),  # synchronous: exactly the batches of the versions there are
    ],
)
def test_capacity_is_limited_by_concurrency_and_staleness(max_concurrent, batch, eta, version, running, capacity):
    gate = StalenessGate(max_concurrent, batch, eta)
    for _ in range(running):
        gate.start()
    assert gate.capacity(version) == capacity


@pytest.mark.parametrize("version", [0, 1, 7, 100])
def test_after_a_recovery_capacity_counts_from_the_version(version):
    gate = StalenessGate(1000, 16, 2, accepted=version * 16)
    assert gate.capacity(version) == (2 + 1) * 16
    for _ in range(5):
        gate.start()
    assert gate.capacity(version) == 48 - 5
    fresh_counters = StalenessGate(10_000, 16, 2)
    assert fresh_counters.capacity(version) == (2 + version + 1) * 16


def test_too_many_running_groups_are_a_negative_capacity():
    gate = StalenessGate(3, 2, 0, accepted=4)
    gate.start()
    assert gate.capacity(0) == 2 - 5


def test_a_released_or_dropped_group_makes_room_and_an_accepted_one_does_not():
    gate = StalenessGate(10, 2, 0)
    gate.start()
    gate.start()
    assert gate.capacity(0) == 0
    gate.accept()
    assert gate.capacity(0) == 0
    gate.release()
    assert gate.capacity(0) == 1
    gate.drop()
    assert gate.capacity(0) == 2
    assert gate.capacity(1) == 4


@given(st.integers(1, 50), st.integers(1, 9), st.integers(0, 5), st.lists(st.sampled_from("sapgd"), max_size=80))
def test_started_groups_never_exceed_the_staleness_limit(max_concurrent, batch, eta, actions):
    gate, version = StalenessGate(max_concurrent, batch, eta), 0
    for action in actions:
        if action == "s" and gate.capacity(version) > 0:
            gate.start()
            assert gate.accepted + gate.running <= (eta + version + 1) * batch
            assert gate.running <= max_concurrent
        elif action == "a" and gate.running:
            gate.accept()
        elif action == "g" and gate.running:
            gate.release()
        elif action == "d" and gate.accepted > version * batch:
            gate.drop()
        elif action == "p" and gate.accepted >= (version + 1) * batch:
            version += 1
