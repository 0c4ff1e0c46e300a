"""Learning rate schedules and interval timers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from areal_like.config.sections.checkpoints import FrequencyConfig
from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.process.interval_timer import IntervalTimer
from areal_like.training.schedules import make_schedule
from tests.support.training_runs import section


def course(steps: int, **settings) -> list[float]:
    schedule = make_schedule(section(OptimizerConfig, **{"lr": 1.0, "warmup_steps": 0, **settings}), 10)
    return [round(schedule(step), 6) for step in range(steps)]


def test_cosine_warms_up_from_the_lowest_rate_and_decays_to_it():
    expected = [0.1, 0.55, 1, 0.965746, 0.868198, 0.722208, 0.55, 0.377792, 0.231802, 0.134254, 0.1]

    assert course(11, lr_scheduler_type="cosine", warmup_steps=2, min_lr_ratio=0.1) == expected
    assert course(13, lr_scheduler_type="cosine", warmup_steps=2, min_lr_ratio=0.1)[11:] == [0.1, 0.1]


def test_linear_decays_to_the_lowest_rate_at_the_last_step():
    assert course(11, lr_scheduler_type="linear") == [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0]
    assert course(11, lr_scheduler_type="linear", min_lr_ratio=0.5)[-2:] == [0.55, 0.5]


def test_constant_stays_where_warm_up_ends():
    assert course(6, lr_scheduler_type="constant", warmup_steps=4) == [0, 0.25, 0.5, 0.75, 1, 1]


def test_warmup_stable_decay_decays_only_over_the_last_steps():
    settings = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 2, "min_lr_ratio": 0.2}

    assert course(11, decay_steps=4, **settings) == [0.2, 0.6, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]
    assert course(11, **settings)[8:] == [1, 1, 0.2], "a tenth of the steps"
    assert course(11, decay_steps_proportion=0.4, **settings) == course(11, decay_steps=4, **settings)
    assert course(11, decay_steps=4, decay_steps_proportion=0.9, **settings)[6:8] == [1, 0.8]
    assert course(11, decay_steps=0, **settings)[2:] == [1] * 9


def test_a_warm_up_that_overlaps_the_decay_ends_at_the_full_rate():
    settings = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 6}

    assert course(11, decay_steps=8, **settings)[5:] == [0.833333, 1, 0.75, 0.5, 0.25, 0]


def test_a_run_that_is_longer_than_planned_stays_at_the_lowest_rate():
    for kind in ("linear", "cosine", "warmup_stable_decay"):
        assert course(14, lr_scheduler_type=kind, min_lr_ratio=0.25)[10:] == [0.25] * 4


@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "warmup_stable_decay"]),
    total=st.integers(1, 50),
    warmup=st.integers(0, 60),
    decay=st.integers(0, 60),
    lowest=st.floats(0, 1),
)
def test_a_rate_stays_in_bounds_rises_in_warm_up_and_falls_after_it(kind, total, warmup, decay, lowest):
    config = section(OptimizerConfig, lr=2.0, lr_scheduler_type=kind, warmup_steps=warmup, decay_steps=decay)
    config.min_lr_ratio = lowest
    schedule = make_schedule(config, total)
    rates = [schedule(step) for step in range(total + 5)]

    assert all(2.0 * lowest - 1e-9 <= rate <= 2.0 + 1e-9 for rate in rates)
    rising, falling = rates[: warmup + 1], rates[warmup:]
    assert all(one <= other + 1e-9 for one, other in itertools.pairwise(rising))
    assert all(one + 1e-9 >= other for one, other in itertools.pairwise(falling))


def test_the_lowest_rate_in_absolute_terms_wins_over_the_share():
    assert course(11, lr=0.1, lr_scheduler_type="linear", min_lr=0.02, min_lr_ratio=0.9)[-1] == 0.02


def test_the_warm_up_proportion_applies_without_warm_up_steps():
    assert course(3, warmup_steps=None, warmup_steps_proportion=0.25) == [0, 0.5, 1]


def fired(steps: int, **settings) -> list[int]:
    """Steps, from 0, at whose end a timer is due; an epoch has 4."""
    timer = IntervalTimer(section(FrequencyConfig, **settings), steps_per_epoch=4, now=lambda: 0.0)
    return [step for step in range(steps) if timer.is_due(step + 1)]


def test_intervals_are_independent():
    assert fired(12, freq_steps=3) == [2, 5, 8, 11]
    assert fired(12, freq_epochs=1) == [3, 7, 11]
    assert fired(12, freq_steps=3, freq_epochs=1) == [2, 3, 5, 7, 8, 11]
    assert fired(12) == []


def test_the_seconds_interval_restarts_when_due_and_continues_after_a_resume():
    now = 0.0
    timer = IntervalTimer(section(FrequencyConfig, freq_secs=10), 4, now=lambda: now)
    assert not timer.is_due(1)
    now = 12.0
    assert timer.is_due(2) and not timer.is_due(3)
    now = 20.0
    state = timer.state()

    again = IntervalTimer(section(FrequencyConfig, freq_secs=10), 4, now=lambda: now)
    again.restore(state)
    now = 21.0
    assert not again.is_due(4)
    now = 22.0
    assert again.is_due(5)
