"""A program as it is: it calls the policy by OpenAI's interface, and its calls are trained on."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import orjson

from areal_like.config.sections.agent import ANSWER, POSTED, AgentConfig
from areal_like.data.user_code import SearchFolders, config_error, load_object
from areal_like.rollout.episodes.agents.base import AgentError, AgentProgram
from areal_like.rollout.episodes.agents.command import CommandAgent
from areal_like.rollout.episodes.agents.function import FunctionAgent
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.episodes.gateway.session import AgentSession, SessionRules
from areal_like.rollout.episodes.rewards.base import Reward, parse_reward
from areal_like.rollout.trajectory import Trajectory
from areal_like.serving.requests import shorten


class Agent:
    """Runs the program of the section `agent` for each sample of a group. One that fails has no reward, or
    `agent.failed_reward`; a server that fails is no fault of the agent."""

    waits_for_others = True
    """For its turn among `agent.max_concurrent`."""
    needs_reward: bool
    _settings: AgentConfig
    _program: AgentProgram
    _rules: SessionRules
    _free: asyncio.Semaphore

    @classmethod
    def configured(cls, settings: AgentConfig, places: SearchFolders) -> Self:
        agent = cls()
        agent._settings, agent.needs_reward = settings, settings.reward_from == ANSWER
        agent._program = _program(settings, places)
        agent._rules = SessionRules.configured(settings)
        agent._free = asyncio.Semaphore(settings.max_concurrent)
        return agent

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        return await episode.each_sample(self._play, row)

    async def _play(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        session = episode.agent_session(self._rules)
        async with self._free:
            start, endpoint = time.monotonic(), await episode.tools.gateway.open(session)
            failure, result = "", None
            try:
                result = await asyncio.wait_for(self._program.run(row, endpoint), self._settings.timeout_s)
            except TimeoutError:
                failure = f"agent.timeout_s: the agent took longer than {self._settings.timeout_s:g} s"
                await episode.blame_server(session)
            except AgentError as fault:
                failure = str(fault)
            finally:
                await episode.tools.gateway.end(endpoint)
            seconds = time.monotonic() - start
        if session.fault is not None:
            raise session.fault
        reward = await self._reward(episode, row, session, result, failure)
        return session.trajectory(reward, agent_s=seconds)

    async def _reward(
        self, episode: Episode, row: dict[str, Any], session: AgentSession, result: Any, failure: str
    ) -> Reward | None:
        answer = session.last_answer
        if answer is None:
            refused = f"; the last call was refused: {session.refusal}" if session.refusal else ""
            episode.leave_out(AgentError(f"{failure or 'agent: it ended without an answer of the policy'}{refused}"))
            return None
        if not failure and self._settings.reward_from == ANSWER:
            return (await episode.try_score(row, [answer]))[0]
        if not failure and self._settings.reward_from == POSTED:
            if (posted := session.posted_reward) is not None:
                return Reward(posted)
            failure = "agent.reward_from: the agent has posted no reward"
        elif not failure:
            try:
                return parse_reward(_number(result))
            except ValueError as misfit:
                failure = f"agent.reward_from: the result of the agent is no reward: {misfit}"
        if self._settings.failed_reward is not None:
            return Reward(self._settings.failed_reward)
        refused = f"; its last refused call: {session.refusal}" if session.refusal else ""
        episode.count_failed(f"{failure}{refused}")
        return None


def _program(settings: AgentConfig, places: SearchFolders) -> AgentProgram:
    if settings.function is not None:
        function = load_object("agent.function", settings.function, places)
        if not callable(function):
            raise config_error("agent.function", f"{settings.function} is {type(function).__name__}, not a function")
        return FunctionAgent(settings.function, function)
    words = [settings.command[0], *(_found(word, places) for word in settings.command[1:])]
    return CommandAgent(words, places.cwd, settings.max_memory_gb)


def _found(word: str, places: SearchFolders) -> str:
    """A file of Python beside the experiment's file, or in the working directory; any other word as it is."""
    if not word.endswith(".py") or Path(word).is_absolute():
        return word
    return next((str(folder / word) for folder in places if (folder / word).is_file()), word)


def _number(result: Any) -> Any:
    """Of the last line of a program, or of what a function returns: a number, or an object with `reward`."""
    if isinstance(result, str):
        try:
            result = orjson.loads(result)
        except orjson.JSONDecodeError:
            raise ValueError(f"the last line is {result!r:.80}") from None
    if isinstance(result, Mapping):
        if "reward" not in result:
            raise ValueError(f"an object without `reward`: {shorten(dict(result))}")
        return result["reward"]
    return result
