"""A taskset with two agents, both of which learn: one answers, and others check its answer, each in a run of its own.

Both are rewarded for the right answer, and for agreeing."""

import verifiers.v1 as vf  # type: ignore[import-not-found]
from v1_sums import SumTaskset, SureHarness  # type: ignore[import-not-found]

__all__ = ["CheckedEnv", "SumTaskset", "SureHarness"]


class CheckedConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    checker: vf.AgentConfig = vf.AgentConfig()
    checks: int = 1


class CheckedEnv(vf.Env[CheckedConfig]):
    async def run(self, task, agents):
        solved = await agents.solver.run(task)
        prompt = f"{task.data.prompt}{solved.last_reply}?"
        for _ in range(self.config.checks):
            await agents.checker.run(type(task)(task.data.model_copy(update={"prompt": prompt}), task.config))

    async def finalize(self, task, episode):
        replies = {trace.last_reply for trace in episode.traces}
        for trace in episode.traces:
            trace.record_reward("agrees", float(len(replies) == 1), 0.5)
