"""Times of the phases of an episode: samples that wait together count once."""

from areal_like.rollout.episodes.phase_times import PhaseTimes


def test_phases_that_overlap_count_once_and_the_rest_is_other_time() -> None:
    clock = [10.0]
    times = PhaseTimes(lambda: clock[0])

    def wait(seconds: float) -> None:
        clock[0] += seconds

    wait(1)
    with times.timed("generate_s"):
        wait(2)
        with times.timed("generate_s"), times.timed("tools_s"):
            wait(4)
        wait(8)
    wait(16)
    with times.timed("tools_s"):
        wait(32)
    assert times.totals() == {"generate_s": 14, "tools_s": 36, "total_s": 63}
    assert times.totals(with_other=True)["other_s"] == 17


def test_the_time_besides_another_phase_counts_as_this_one() -> None:
    clock = [0.0]
    times = PhaseTimes(lambda: clock[0])

    def wait(seconds: float) -> None:
        clock[0] += seconds

    with times.timed("generate_s"):
        wait(1)
    with times.timed_besides("tools_s", "generate_s"):
        wait(2)
        with times.timed("generate_s"):
            wait(4)
        wait(8)
    wait(16)
    assert times.totals(with_other=True) == {"generate_s": 5, "tools_s": 10, "other_s": 16, "total_s": 31}


def test_a_phase_that_fails_counts_as_well() -> None:
    clock = [0.0]
    times = PhaseTimes(lambda: clock[0])
    try:
        with times.timed("reward_s"):
            clock[0] += 3
            raise ValueError("no reward")
    except ValueError:
        pass
    assert times.totals() == {"reward_s": 3, "total_s": 3}
