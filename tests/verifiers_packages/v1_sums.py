"""A taskset: sums, with an agent of its own that asks whether the model is sure, and takes its last answer.

`question: ""` makes it ask only once, and with `ends: false` it never ends."""

import asyncio
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found]
from openai import AsyncOpenAI  # type: ignore[import-not-found, unused-ignore]

__all__ = ["SumTaskset", "SureHarness"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace):
        return float(trace.last_reply == task.answer)

    @vf.metric
    async def length(self, trace):
        if trace.last_reply == "broken":
            raise RuntimeError("nobody can read it")
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    first: int = 10
    added: int = 1


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for a in range(self.config.first, self.config.first + 4):
            total = a + self.config.added
            data = SumData(prompt=f"{a}+{self.config.added}=", system_prompt="be brief", answer=f"{total:03d}")
            yield SumTask(data, self.config.task)


class SureConfig(vf.HarnessConfig):
    question: str = "sure?"
    ends: bool = True


class SureHarness(vf.Harness[SureConfig]):
    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **more):
        messages: Any = [{"role": "system", "content": data.system_prompt}, {"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for _ in range(2 if self.config.question else 1):
                answered = await client.chat.completions.create(model=ctx.model, messages=messages)
                text = answered.choices[0].message.content
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": self.config.question}]
        if not self.config.ends:
            await asyncio.Event().wait()
        return vf.ProgramResult(0, "", "")
