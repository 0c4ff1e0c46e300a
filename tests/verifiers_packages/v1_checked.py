"""A taskset with two agents, both of which learn: one answers, and others check its answer, each in a run of its own.

Both are rewarded for the right answer, and for agreeing."""

import asyncio
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found]
from v1_sums import SumTaskset, SureHarness  # type: ignore[import-not-found]

__all__ = ["CheckedEnv", "SumTaskset", "SureHarness"]


class CheckedConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    checker: vf.AgentConfig = vf.AgentConfig()
    checks: int = 1
    gives_up: bool = False
    """Raises once the checker has answered, while it still runs."""


class CheckedEnv(vf.Env[CheckedConfig]):
    async def run(self, task, agents):
        solved = await agents.solver.run(task)
        prompt = f"{task.data.prompt}{solved.last_reply}?"
        checked = type(task)(task.data.model_copy(update={"prompt": prompt}), task.config)
        if self.config.gives_up:
            return await self.give_up(checked, agents)
        for _ in range(self.config.checks):
            await agents.checker.run(checked)

    async def give_up(self, task, agents):
        started: list[Any] = []
        checking = asyncio.create_task(agents.checker.run(task, on_trace=started.append))
        while not (started and started[0].last_reply):
            await asyncio.sleep(0.01)
        checking.cancel()
        raise RuntimeError("nobody waits for it")

    async def finalize(self, task, episode):
        replies = {trace.last_reply for trace in episode.traces}
        for trace in episode.traces:
            trace.record_reward("agrees", float(len(replies) == 1), 0.5)
