"""Timeouts of the trainer's requests to the controller; progress of an evaluation restarts them."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from areal_like.process import patience, wait
from areal_like.process.errors import TimedOut
from areal_like.process.frames import Frame
from areal_like.process.identity import EPISODES
from areal_like.process.patience import patience_s
from areal_like.training.controller_client import NoMoreBatches, StepLimits, TrainerControllerClient
from areal_like.training.transports import sender
from tests.support.rollout_world import grpo

LIMIT_S = 100.0
ROWS_LEFT = (9, 7, 4, 3, 1, 0)


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
        config = grpo(*(overrides or [f"rollout.request_timeout={LIMIT_S}"]))
        self._config, self._patience_s = config.rollout, patience_s(config, EPISODES)
        self._rank, self._world_size = 0, 1
        self.answers, self.clock = answers, clock

    def _frame(self, path: str, body: Any) -> Frame:
        self.clock.now += 0.6 * LIMIT_S
        return Frame(self.answers.pop(0), [])

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        self.clock.now += 0.6 * LIMIT_S
        return self.answers.pop(0)


def test_a_batch_is_awaited_while_an_evaluation_makes_progress(clock: Clock) -> None:
    answers: list[dict[str, Any]] = [{"wait": True, "evaluating": rows} for rows in ROWS_LEFT]
    assert Answering([*answers, {"stop": "the end"}], clock).batch(3) == NoMoreBatches("the end")


@pytest.mark.parametrize("rows", [0, 5])
def test_a_wait_without_progress_ends_at_its_limit(rows: int, clock: Clock) -> None:
    with pytest.raises(TimedOut, match=r"rollout.request_timeout: waited .* for batch 3 from rollout/0"):
        Answering([{"wait": True, "evaluating": rows}] * 4, clock).batch(3)


@pytest.mark.shows("rollout.request_timeout")
def test_request_timeout_limits_the_wait_for_a_batch(clock: Clock) -> None:
    answers: list[dict[str, Any]] = [{"wait": True}] * 4 + [{"stop": "the end"}]
    with pytest.raises(TimedOut, match=r"rollout.request_timeout: waited"):
        Answering([*answers], clock, "rollout.request_timeout=100").batch(3)
    assert Answering([*answers], clock, "rollout.request_timeout=400").batch(3) == NoMoreBatches("the end")


@pytest.mark.shows("rollout.setup_timeout")
def test_setup_timeout_limits_the_wait_for_the_numbers_of_steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the time after which a worker that hangs is killed."""
    monkeypatch.setattr(patience, "MARGIN_S", 0.0)
    killed = ("watchdog.loading_s=1", "watchdog.waiting_s=1")
    ready = {"ready": True, "total_steps": 9, "steps_per_epoch": 3}
    answers: list[dict[str, Any]] = [{"ready": False}] * 4 + [ready]
    with pytest.raises(TimedOut, match=r"rollout.setup_timeout: waited .* for the number of steps from rollout/0"):
        Answering([*answers], clock, "rollout.setup_timeout=100", *killed).step_limits()
    assert Answering([*answers], clock, "rollout.setup_timeout=400", *killed).step_limits() == StepLimits(9, 3)


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

    sending = sender.WeightSender(cast(Any, None), ask, LIMIT_S)
    sending.offer(cast(Any, SimpleNamespace(index=SimpleNamespace(version=3))))
    sending.close(early=False)
    assert answers == []
