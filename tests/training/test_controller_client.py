"""Timeouts of the trainer's requests to the controller; progress of an evaluation restarts them."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from areal_like.process import patience, wait
from areal_like.process.errors import TimedOut
from areal_like.process.frames import Frame
from areal_like.process.identity import CONTROLLER, EPISODES, SERVER
from areal_like.process.patience import (
    AUTO_S,
    BUSY_FACTOR,
    MARGIN_S,
    REQUEST_KEY,
    WaitLimit,
    answer_limit,
    patience_s,
)
from areal_like.training.controller_client import NoMoreBatches, StepLimits, TrainerControllerClient
from areal_like.training.transports import sender
from tests.support.rollout_world import grpo

LIMIT_S = 100.0
ROWS_LEFT = (9, 7, 4, 3, 1, 0)
ROLES = SERVER, CONTROLLER, EPISODES
QUICK = tuple(f"watchdog.{phase}_s=1" for role in ROLES for phase in patience.PHASES_OF[role])
"""What hangs is replaced long before a request ends."""


class Clock:
    """`looks` counts reads of the clock."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(wait, "time", made)
    return made


class Answering(TrainerControllerClient):
    """What a controller would answer, each time after most of the limit."""

    def __init__(self, answers: list[dict[str, Any]], clock: Clock, *overrides: str) -> None:
        config = grpo(*QUICK, "rollout.setup_timeout=1", *(overrides or [f"rollout.request_timeout={LIMIT_S}"]))
        self._batch_limit, self._patience_s = answer_limit(config, *ROLES), patience_s(config, EPISODES)
        self._rank, self._world_size = 0, 1
        self.answers, self.clock = answers, clock

    def _frame(self, path: str, body: Any) -> Frame:
        self.clock.now += 0.6 * LIMIT_S
        return Frame(self.answers.pop(0), [])

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        self.clock.now += 0.6 * LIMIT_S
        return self.answers.pop(0)


def waits(results: int, lease_limit_s: float = 1.0) -> dict[str, Any]:
    return {"wait": True, "results": results, "limit": [lease_limit_s, "agent.timeout_s"]}


def test_a_batch_is_awaited_while_groups_end(clock: Clock) -> None:
    answers = [waits(results) for results in (3, 4, 7, 9)]
    assert Answering([*answers, {"stop": "the end"}], clock).batch(3) == NoMoreBatches("the end")


@pytest.mark.parametrize("results", [0, 5])
def test_a_wait_without_progress_ends_at_its_limit(results: int, clock: Clock) -> None:
    with pytest.raises(TimedOut, match=r"rollout.request_timeout: waited .* for batch 3 from rollout/0"):
        Answering([waits(results)] * 4, clock).batch(3)


def test_a_wait_for_a_batch_lasts_as_long_as_a_group_may(clock: Clock) -> None:
    """Groups of agents may have longer than a request."""
    answers = [waits(1, 4 * LIMIT_S)] * 5
    assert Answering([*answers, {"stop": "the end"}], clock).batch(3) == NoMoreBatches("the end")
    with pytest.raises(TimedOut, match=r"agent.timeout_s: waited .* for batch 3 from rollout/0"):
        Answering([waits(1, 4 * LIMIT_S)] * 9, clock).batch(3)


def test_who_waits_for_answers_lasts_until_a_server_that_hangs_or_computes_has_been_replaced() -> None:
    config = grpo()
    limit = answer_limit(config, SERVER)
    assert limit.seconds >= BUSY_FACTOR * AUTO_S + MARGIN_S + config.rollout.setup_timeout
    assert answer_limit(grpo("watchdog.generating_s=9000"), SERVER).seconds > 9000
    assert answer_limit(grpo("rollout.request_timeout=9000"), SERVER) == (9000, "rollout.request_timeout")


@pytest.mark.shows("rollout.request_timeout")
def test_request_timeout_limits_the_wait_for_a_batch(clock: Clock) -> None:
    answers = [waits(0)] * 4 + [{"stop": "the end"}]
    with pytest.raises(TimedOut, match=r"rollout.request_timeout: waited"):
        Answering([*answers], clock, "rollout.request_timeout=100").batch(3)
    assert Answering([*answers], clock, "rollout.request_timeout=400").batch(3) == NoMoreBatches("the end")


@pytest.mark.shows("rollout.setup_timeout")
def test_setup_timeout_limits_the_wait_for_the_numbers_of_steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the time after which a worker that hangs is killed."""
    monkeypatch.setattr(patience, "MARGIN_S", 0.0)
    ready = {"ready": True, "total_steps": 9, "steps_per_epoch": 3}
    answers: list[dict[str, Any]] = [{"ready": False}] * 4 + [ready]
    with pytest.raises(TimedOut, match=r"rollout.setup_timeout: waited .* for the number of steps from rollout/0"):
        Answering([*answers], clock, "rollout.setup_timeout=100").step_limits()
    assert Answering([*answers], clock, "rollout.setup_timeout=400").step_limits() == StepLimits(9, 3)


def test_the_weight_sender_stays_during_the_last_evaluation(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is replaced meanwhile needs them again."""
    monkeypatch.setattr(sender, "PAUSE_S", 0.01)
    answers: list[dict[str, object]] = [{"evaluating": rows} for rows in ROWS_LEFT]

    def ask(path: str, body: dict[str, object]) -> dict[str, object]:
        seen = clock.looks + 3  # the trainer has looked at the last answer by then
        while clock.looks < seen:
            time.sleep(0.005)
        clock.now += 0.6 * LIMIT_S
        return answers.pop(0) if answers else {"end": True}

    sending = sender.WeightSender(cast(Any, None), ask, WaitLimit(LIMIT_S, REQUEST_KEY))
    sending.offer(cast(Any, SimpleNamespace(index=SimpleNamespace(version=3))))
    sending.close(early=False)
    assert answers == []
