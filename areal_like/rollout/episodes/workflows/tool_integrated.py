"""Code that runs in the middle of an answer: its output is inserted, and the model continues the same answer."""

import re
from typing import Any

from areal_like.config.argument_types import Count, Positive
from areal_like.data.user_code import config_error
from areal_like.process.errors import InfrastructureError
from areal_like.process.sandbox.program import START_TIMEOUT_S
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.episodes.phase_times import TOOLS
from areal_like.rollout.episodes.tools.base import tool_of
from areal_like.rollout.episodes.tools.python import PythonTool
from areal_like.rollout.trajectory import Trajectory

CODE = re.compile(r"```(?:python|py)[^\S\n]*\n((?:(?!```).)*)\n```\s*\Z", re.DOTALL)
END_OF_CODE = "\n```\n"


class ToolIntegrated:
    """A fenced block of Python runs in the sandbox when it ends. Its output follows as a block ```output, which is not
    in the loss, and the answer goes on, for at most `max_calls` blocks. The reward is that of the whole answer."""

    needs_reward = True

    def __init__(
        self,
        max_calls: Count = 4,
        call_timeout_s: Positive = 10.0,
        max_result_characters: Count = 2000,
        sandbox: str | None = None,
    ) -> None:
        self._max_calls, self._call_timeout_s = max_calls, call_timeout_s
        self._max_result = max_result_characters
        try:
            self._python = tool_of(PythonTool(call_timeout_s, sandbox), "python", extra_s=2 * START_TIMEOUT_S)
        except (ValueError, InfrastructureError) as fault:
            raise config_error("workflow.name", f"tool_integrated cannot run programs: {fault}", fault) from fault

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        return await episode.each_sample(self._answer, row)

    async def _answer(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory]:
        chat = episode.conversation(row["prompt"], row.get("tools"))
        written, num_calls, num_errors = "", 0, 0
        while True:
            part = await chat.generate(stop=[END_OF_CODE] if num_calls < self._max_calls else [])
            written += part.text + (part.stop_text or "")
            if part.stop_text is None:
                break
            output = ""
            if code := CODE.search(written):  # a block of another language goes on
                with episode.times.timed(TOOLS):
                    result = await self._python.call({"code": code[1]}, self._call_timeout_s)
                num_calls, num_errors = num_calls + 1, num_errors + result.is_error
                shown = f"error: {result.text}" if result.is_error else result.text
                output = f"```output\n{shown[: self._max_result]}\n```\n"
            chat.insert(output)
            written += output
            if chat.room < 1:
                break
        (reward,) = await episode.try_score(row, [written])
        return chat.trajectory(reward, tool_calls=num_calls, tool_errors=num_errors)
