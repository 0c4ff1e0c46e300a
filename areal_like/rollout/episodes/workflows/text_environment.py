"""Plays a text environment: its observations are the messages, the answers of the model its actions."""

import time
from contextlib import AsyncExitStack
from typing import Any

from areal_like.config.argument_types import Count, Positive, Share, Take
from areal_like.config.text_environments import CALL_TIMEOUT_S, MAX_PROCESSES, MAX_TURNS
from areal_like.data.chat_template import SYSTEM, USER, Message
from areal_like.data.exact_json import dump_json
from areal_like.data.tasks.text_environment import ENVIRONMENT, ENVIRONMENT_ARGS, SEED
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.episodes.phase_times import TOOLS
from areal_like.rollout.episodes.rewards.base import Reward, RewardError
from areal_like.rollout.episodes.rewards.stated_result import take as take_part
from areal_like.rollout.episodes.sample import RowError, Sample
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault, EnvironmentProcess, InstanceSpec
from areal_like.rollout.trajectory import Trajectory

SCORE = "score"


class PlayEnvironment:
    """All samples of a group play from the same seed, each in an instance of its own. A conversation ends with the
    environment, after `max_turns` answers, without room for another, or after `timeout_s`. Its reward is the sum of
    those of its steps, each times `turn_discount` for each step before; with `turn_rewards` each answer has that of the
    steps from its own one on."""

    waits_for_others = True
    """For an instance."""

    def __init__(
        self,
        max_turns: Count = MAX_TURNS,
        turn_rewards: bool = False,
        turn_discount: Share = 1.0,
        take: Take = "whole",
        instructions: str = "",
        as_chat: bool | None = None,
        timeout_s: Positive | None = None,
        call_timeout_s: Positive = CALL_TIMEOUT_S,
        start_timeout_s: Positive = 120.0,
        max_processes: Count = MAX_PROCESSES,
        python: str | None = None,
    ) -> None:
        self._max_turns, self._timeout_s = max_turns, timeout_s
        self._turn_rewards, self._discount = turn_rewards, turn_discount
        self._take, self._instructions, self._as_chat = take, instructions, as_chat
        self._limits = (python, float(start_timeout_s), float(call_timeout_s), max_processes)

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        if not plays(row):
            raise RowError("is of no text environment: name one in id, with reset and step")
        return await episode.each_sample(self._play, row)

    async def _play(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        args = dump_json(row[ENVIRONMENT_ARGS], sort_keys=True)
        spec = InstanceSpec(row[ENVIRONMENT], args, *self._limits)
        async with AsyncExitStack() as opened:
            start = time.monotonic()
            try:
                with episode.times.timed(TOOLS):
                    environment = await opened.enter_async_context(episode.tools.environments.instance(spec))
                    start = time.monotonic()
                    state = await environment.reset(row[SEED])
            except EnvironmentFault as fault:
                episode.leave_out(fault)
                return None
            return await self._converse(episode, environment, state, start)

    async def _converse(
        self, episode: Episode, environment: EnvironmentProcess, state: dict[str, Any], start: float
    ) -> list[Trajectory]:
        waited_s = time.monotonic() - start
        chat = episode.conversation(self._first(episode, state["observation"]))
        rewards, cut_off = list[float](), False
        while True:
            answer = await chat.generate()
            sent = time.monotonic()
            try:
                with episode.times.timed(TOOLS):
                    state = await environment.step(self._action(answer))
            except EnvironmentFault as fault:
                try:
                    episode.count_failed(str(fault))
                except RewardError:
                    raise fault from None
                return chat.trajectory(None)
            now = time.monotonic()
            waited_s += now - sent
            rewards.append(state["reward"])
            late = self._timeout_s is not None and now - start >= self._timeout_s
            if state["terminated"] or state["truncated"] or late or len(chat.turns) == self._max_turns:
                break
            chat.observe(state["observation"])
            if cut_off := chat.room < 1:
                break
        parts = {SCORE: state[SCORE]} if SCORE in state else {}
        if self._turn_rewards:
            return chat.trajectory(Reward(0.0, parts), rewards, self._discount, cut_off, environment_s=waited_s)
        value = sum(reward * self._discount**turn for turn, reward in enumerate(rewards))
        return chat.trajectory(Reward(value, parts), cut_off=cut_off, environment_s=waited_s)

    def _first(self, episode: Episode, observation: str) -> str | list[Message]:
        """Messages where the tokenizer has a chat template."""
        as_chat = episode.tools.tokenizer.has_chat_template if self._as_chat is None else self._as_chat
        if not as_chat:
            return self._instructions + observation
        system: list[Message] = [{"role": SYSTEM, "content": self._instructions}] if self._instructions else []
        return [*system, {"role": USER, "content": observation}]

    def _action(self, answer: Sample) -> str:
        """All of an answer where it lacks the part."""
        part = take_part(self._take, answer.text)
        return answer.text if part is None else part


def plays(row: dict[str, Any]) -> bool:
    """Whether a row is of a text environment."""
    return ENVIRONMENT in row
