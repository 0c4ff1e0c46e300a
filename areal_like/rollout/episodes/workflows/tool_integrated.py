"""Code that runs in the middle of an answer: its output is inserted, and the model continues the same answer."""

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from areal_like.config.argument_types import Count, InlineTools, Positive, inline_tools
from areal_like.data.user_code import config_error
from areal_like.process.errors import InfrastructureError
from areal_like.process.sandbox.program import START_TIMEOUT_S
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.episodes.phase_times import TOOLS
from areal_like.rollout.episodes.tools.base import Tool, tool_of
from areal_like.rollout.episodes.tools.calculator import calculator
from areal_like.rollout.episodes.tools.python import PythonTool
from areal_like.rollout.trajectory import Trajectory


class InlineCall(NamedTuple):
    """How an answer calls a tool: `call` finds the argument in a text that ends with `end`."""

    call: re.Pattern[str]
    end: str
    argument: str
    before_output: str


CALLS = {
    "python": InlineCall(
        re.compile(r"```(?:python|py)[^\S\n]*\n((?:(?!```).)*)\n```\s*\Z", re.DOTALL), "\n```\n", "code", ""
    ),
    "calculator": InlineCall(
        re.compile(r"<calculator>((?:(?!<calculator>).)*)</calculator>\s*\Z", re.DOTALL),
        *("</calculator>", "expression", "\n"),
    ),
}


class ToolIntegrated:
    """A fenced block of Python runs in the sandbox when it ends, and `<calculator>1 + 2</calculator>` is computed, as
    `tools` has them. The output follows as a block ```output, which is not in the loss, and the answer goes on, for at
    most `max_calls` calls. It is cut off after `max_answer_tokens` tokens of the model (default: its
    `gconfig.max_new_tokens`), without room, or where `timeout_s` has passed. The reward is that of the whole answer."""

    needs_reward = True

    def __init__(
        self,
        max_calls: Count = 4,
        call_timeout_s: Positive = 10.0,
        max_result_characters: Count = 2000,
        sandbox: str | None = None,
        tools: InlineTools = "python",
        timeout_s: Positive | None = None,
        max_answer_tokens: Count | None = None,
    ) -> None:
        self._max_calls, self._call_timeout_s, self._timeout_s = max_calls, call_timeout_s, timeout_s
        self._max_result, self._max_answer_tokens = max_result_characters, max_answer_tokens
        make: dict[str, Callable[[], Tool]] = {
            "python": lambda: tool_of(PythonTool(call_timeout_s, sandbox), "python", extra_s=2 * START_TIMEOUT_S),
            "calculator": lambda: tool_of(calculator),
        }
        try:
            self._tools = [(CALLS[name], make[name]()) for name in inline_tools(tools)]
        except (ValueError, InfrastructureError) as fault:
            raise config_error("workflow.name", f"tool_integrated cannot run programs: {fault}", fault) from fault

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        return await episode.each_sample(self._answer, row)

    async def _answer(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory]:
        chat, start = episode.conversation(row["prompt"], row.get("tools")), time.monotonic()
        left: int = self._max_answer_tokens or episode.lease["sampling"]["max_new_tokens"]
        ends, written, num_calls, num_errors, cut_off = [call.end for call, _ in self._tools], "", 0, 0, False
        while True:
            stops = [*(ends if num_calls < self._max_calls else []), *episode.stop]
            part = await chat.generate(stop=stops, max_new_tokens=left)
            written, left = written + part.text, left - len(part.token_ids)
            if part.stop_text not in ends:
                break
            written += part.stop_text
            output = ""
            for call, tool in self._tools:
                if found := call.call.search(written):  # a block of another language goes on
                    with episode.times.timed(TOOLS):
                        result = await tool.call({call.argument: found[1]}, self._call_timeout_s)
                    num_calls, num_errors = num_calls + 1, num_errors + result.is_error
                    shown = f"error: {result.text}" if result.is_error else result.text
                    output = f"{call.before_output}```output\n{shown[: self._max_result]}\n```\n"
            chat.insert(output)
            written += output
            late = self._timeout_s is not None and time.monotonic() - start >= self._timeout_s
            if cut_off := late or min(left, chat.room) < 1:
                break
        (reward,) = await episode.try_score(row, [written])
        return chat.trajectory(reward, cut_off=cut_off, tool_calls=num_calls, tool_errors=num_errors)
