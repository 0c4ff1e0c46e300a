"""A taskset with two agents: one helps with the sum, and its answer is part of the prompt of the other one."""

import verifiers.v1 as vf  # type: ignore[import-not-found]
from v1_sums import SumTaskset, SureHarness  # type: ignore[import-not-found]

__all__ = ["HelpedEnv", "SumTaskset", "SureHarness"]


class HelpedConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    helper: vf.AgentConfig = vf.AgentConfig()


class HelpedEnv(vf.Env[HelpedConfig]):
    async def setup(self, agents):
        agents.helper.trainable = False

    async def run(self, task, agents):
        hint = await agents.helper.run(task)
        prompt = f"{task.data.prompt}{hint.last_reply}?"
        await agents.solver.run(type(task)(task.data.model_copy(update={"prompt": prompt}), task.config))
