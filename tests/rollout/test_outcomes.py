"""Decisions about finished groups, without a loop."""

from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.data.votes import VoteRule
from areal_like.rollout.curriculum.curriculum import Curriculum
from areal_like.rollout.decisions import Accept, Drop, Fail, Requeue
from areal_like.rollout.groups import Group, Result
from areal_like.rollout.outcomes import Streaks, decide
from tests.support.rollout_world import facts


def view(next_step: int = 0, replaced: int = 0, **changed: Any) -> Any:
    values: dict[str, Any] = {"request_retries": 2, "max_staleness": 1, "batch_size": 3}
    values |= {"dynamic_sampling": False, "refill": False}
    return SimpleNamespace(
        settings=SimpleNamespace(**{**values, "vote_rule": VoteRule(), **changed}),
        batches=SimpleNamespace(next_step=next_step),
        length=SimpleNamespace(rows_per_epoch=5),
        queue=SimpleNamespace(curriculum=Curriculum()),
        replaced=SimpleNamespace(count=replaced),
    )


def group(**changed: Any) -> Group:
    return Group(**{"number": 7, "row": 1, "seed": 0, "n": 2, **changed})


def done(rewards: tuple[float | None, ...] = (0.0, 1.0), version: int = 4, masked: int = 0) -> Result:
    """The last `masked` answers are out of the loss."""
    answers = facts(version, list(rewards))
    for answer in answers[len(answers) - masked :]:
        answer["loss_tokens"] = 0
    return Result("7.1", "done", facts=answers)


FAILED = Result("7.1", "failed", error="boom", error_kind="reward")
REJECTED = Result("7.1", "rejected")
REFILL = {"dynamic_sampling": True, "refill": True}


@pytest.mark.parametrize(
    ("subject", "result", "state", "decision"),
    [
        (group(), done(), view(), Accept),
        (group(), done(), view(next_step=5), Accept),
        (group(), done(), view(next_step=6), Drop),
        (group(evaluation=4), done(), view(next_step=6), Accept),
        (group(), done((1.0, 1.0)), view(), Accept),
        (group(), done((1.0, 1.0)), view(dynamic_sampling=True), Accept),
        (group(), done((1.0, 1.0)), view(**REFILL), Drop),
        (group(), done((1.0, 1.0)), view(replaced=4, **REFILL), Drop),
        (group(), done((1.0, 1.0, 0.0)), view(**REFILL), Accept),
        (group(), done((1.0, 1.0, 0.0), masked=1), view(**REFILL), Drop),
        (group(), done((1.0, 0.0), masked=1), view(**REFILL), Drop),
        (group(), done((1.0, 0.0), masked=1), view(vote_rule=VoteRule(masked_vote=True), **REFILL), Accept),
        (group(), done((1.0, None, 0.0)), view(**REFILL), Accept),
        (group(), done((None, 1.0, 1.0)), view(vote_rule=VoteRule(masked_vote=True), **REFILL), Drop),
        (group(), done((1.0,)), view(**REFILL), Accept),
        (group(), done((1.0,), masked=1), view(**REFILL), Drop),
        (group(), done((1.0, 1.0)), view(replaced=5, **REFILL), Accept),
        (group(evaluation=4), done((1.0, 1.0)), view(**REFILL), Accept),
        (group(), REJECTED, view(), Drop),
        (group(evaluation=4), REJECTED, view(), Drop),
        (group(failures=1), FAILED, view(), Requeue),
        (group(failures=2), FAILED, view(), Fail),
        (group(evaluation=4, failures=2), FAILED, view(), Fail),
    ],
)
def test_each_result_has_its_decision(subject: Group, result: Result, state: Any, decision: type) -> None:
    assert type(decide(subject, result, state)) is decision


def test_a_decision_changes_neither_the_group_nor_the_state() -> None:
    for result in (done(), FAILED, REJECTED):
        subject, state = group(), view(**REFILL)
        before = repr((subject, state))
        decide(subject, result, state)
        assert repr((subject, state)) == before


def test_a_streak_of_failures_ends_the_run_with_the_first_error_and_a_success_ends_the_streak() -> None:
    state = view()
    streaks = Streaks(state.settings, state.length)
    assert [streaks.failed(group(error=error, failures=3), "reward") for error in ("a", "b")] == ["", ""]
    streaks.done()
    assert [streaks.failed(group(error=error, failures=3), "reward") for error in ("c", "d")] == ["", ""]
    assert streaks.failed(group(error="e", failures=3), "reward") == (
        "reward.name: 3 groups in a row failed, each in 3 tries (rollout.request_retries); the first error was: c"
    )


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("workflow", "workflow.name: 3 groups"),
        ("environment", "environments.train: 3 groups"),
        ("infrastructure", "3 groups in a row failed"),
    ],
)
def test_a_streak_of_failures_blames_the_key_of_what_failed(kind: str, begins: str) -> None:
    streaks = Streaks(view().settings, view().length)
    assert [streaks.failed(group(error="a"), kind) for _ in range(3)][-1].startswith(begins)


def test_rejecting_an_epoch_of_rows_ends_the_run() -> None:
    state = view()
    streaks = Streaks(state.settings, state.length)
    assert [streaks.rejected() for _ in range(4)] == [""] * 4
    assert streaks.rejected().startswith("workflow.name: the workflow returned None for 5 rows in a row")
