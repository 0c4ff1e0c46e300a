"""The first lines of a further start: where it begins, and how many steps are done and follow."""

from pathlib import Path

from areal_like.process.run import StartPoint
from launcher.supervisor.launch import continue_lines


def lines(step: int, total: int | None, resumes: bool = False) -> list[str]:
    return continue_lines(StartPoint(2, step, Path(f"step_{step:06d}")), total, resumes)


def test_a_further_start_counts_the_steps_that_are_done_and_that_follow() -> None:
    assert lines(10, 30) == ["resuming from step 10 (attempt 2): 10 of 30 steps are done, 20 to go"]
    assert lines(1, 2) == ["resuming from step 1 (attempt 2): 1 of 2 steps is done, 1 to go"]
    assert lines(10, None) == ["resuming from step 10 (attempt 2)"]
    assert continue_lines(StartPoint(2, 0, None), 30, False) == ["starting from the beginning (attempt 2)"]


def test_a_further_start_of_a_complete_run_names_the_keys_to_train_more() -> None:
    done, advice = lines(10, 10)
    assert done == "resuming from step 10 (attempt 2)"
    assert advice == "all 10 steps are done; total_train_steps=20 trains 10 more, --replace starts over"
    assert lines(10, 10, resumes=True)[1] == "all 10 steps are done; total_train_steps=20 trains 10 more"
