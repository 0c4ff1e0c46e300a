"""Rows of an environment of the package verifiers: it plays them with the policy, and scores what it got."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from areal_like.config.sections.agent import AgentConfig
from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.data.verifiers.environment_process import HostedPackage
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.episodes.gateway.further_routes import MODEL
from areal_like.rollout.episodes.gateway.session import AgentSession, SessionRules
from areal_like.rollout.episodes.phase_times import GENERATE, TOOLS
from areal_like.rollout.episodes.rewards.base import Reward, parse_reward
from areal_like.rollout.episodes.text_environments.process import FAILURES, TIMEOUTS, EnvironmentFault
from areal_like.rollout.episodes.verifiers.pool import EnvironmentPool
from areal_like.rollout.episodes.verifiers.seat import EnvironmentEnded
from areal_like.rollout.trajectory import Trajectory

SENT_SAMPLING = {"temperature": "temperature", "max_tokens": "max_new_tokens"}
"""What an environment is given to ask for -> sampling of a lease."""


class VerifiersEnvironment:
    """A group is played by one process, so that rewards may compare its episodes. Each episode has an address of the
    gateway for itself. Groups wait where `environments.max_concurrent` are played; the episodes of a larger one wait
    for each other."""

    needs_reward, waits_for_others = False, True

    def __init__(self, package: HostedPackage, settings: EnvironmentsConfig, agent: AgentConfig) -> None:
        self._settings, self._failed_reward = settings, agent.failed_reward
        self._pool = EnvironmentPool(package, settings)
        self._rules = replace(SessionRules.configured(agent), has_runs=True)
        self._num_playing, self._has_room = 0, asyncio.Condition()

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        number = min(episode.n_samples, self._settings.max_concurrent)
        async with self._has_room:
            await self._has_room.wait_for(lambda: self._num_playing + number <= self._settings.max_concurrent)
            self._num_playing += number
        try:
            return await self._play(episode, row, number)
        finally:
            self._num_playing -= number
            async with self._has_room:
                self._has_room.notify_all()

    async def close(self) -> None:
        await self._pool.close()

    async def _play(self, episode: Episode, row: dict[str, Any], at_once: int) -> list[Trajectory]:
        sessions = [episode.agent_session(self._rules) for _ in range(episode.n_samples)]
        gateway, start = episode.tools.gateway, time.monotonic()
        endpoints = [await gateway.open(session) for session in sessions]
        sampling = {name: episode.lease["sampling"][key] for name, key in SENT_SAMPLING.items()}
        request = {
            **{"row": row, "model": MODEL, "sampling": sampling, "at_once": at_once},
            "policies": [{"base_url": each.base_url, "key": each.key} for each in endpoints],
        }
        counts, times = episode.tools.environments.counts, episode.times.timed_besides(TOOLS, GENERATE)
        try:
            results = await self._pool.play(request, self._settings.timeout_s, counts, times)
        except TimeoutError as late:
            for session in sessions:
                await episode.blame_server(session)
            if (fault := next(filter(None, map(_fault, sessions)), None)) is not None:
                raise fault from late
            counts.update((FAILURES, TIMEOUTS))
            message = f"environments.timeout_s: the group took longer than {self._settings.timeout_s:g} s"
            raise EnvironmentFault(message) from late
        except EnvironmentFault as failure:
            fault = next(filter(None, map(_fault, sessions)), None)
            if fault is not None and not isinstance(failure, EnvironmentEnded):
                raise fault from None
            counts[FAILURES] += 1
            raise
        finally:
            for endpoint in endpoints:
                await gateway.end(endpoint)
        seconds = time.monotonic() - start
        played = zip(sessions, results, strict=True)
        return [each for session, result in played for each in self._samples(episode, session, result, seconds)]

    def _samples(
        self, episode: Episode, session: AgentSession, result: dict[str, Any], seconds: float
    ) -> list[Trajectory]:
        """Of one episode. Each run of an agent has its own reward, or none of them has one."""
        named = [(run, session.run(run["id"])) for run in result["runs"]] if "runs" in result else [(result, session)]
        answered = [(run, calls) for run, calls in named if calls.last_answer is not None]
        refusal = next((each.refusal for each in reversed(session.parts) if each.refusal), "")
        refused = f"; its last refused call: {refusal}" if refusal else ""
        failure = result.get("error") or ""
        if (fault := _fault(session)) is not None:
            raise fault
        if not answered:
            why = f"{failure or 'the environment ended without an answer of the policy'}{refused}"
            episode.leave_out(EnvironmentFault(why))
            return []
        rewards = self._rewards(episode, [run for run, _ in answered], failure, refused)
        samples, numbers, totals = list[Trajectory](), Counter[str](), dict[str, float]()
        for (run, calls), reward in zip(answered, rewards, strict=True):
            agent, of_run = run.get("agent", ""), calls.trajectory(reward)
            totals |= {name: value + totals.get(name, 0.0) for name, value in of_run[0].metrics.items()}
            for sample in of_run:
                sample.agent, sample.run = agent, numbers[agent]
            numbers[agent] += 1
            samples += of_run
        for sample in samples:
            sample.metrics = {**totals, "environment_s": seconds}
        return samples

    def _rewards(
        self, episode: Episode, runs: Sequence[dict[str, Any]], failure: str, refused: str
    ) -> Sequence[Reward | None]:
        if not failure:
            try:
                return [parse_reward(Reward(run["reward"], run["metrics"])) for run in runs]
            except ValueError as misfit:
                failure = f"the environment gave no reward: {misfit}"
        if self._failed_reward is not None:
            return [Reward(self._failed_reward)] * len(runs)
        episode.count_failed(f"{failure}{refused}")
        return [None] * len(runs)


def _fault(session: AgentSession) -> Exception | None:
    """Of a server, which is none of the environment."""
    return next((each.fault for each in session.parts if each.fault is not None), None)
