"""Answers that call tools: the model sees the results and answers again, until it calls none."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from areal_like.config.argument_types import TOOLS, CallFormatName, Count, Positive, ResultText, ToolNames
from areal_like.data.user_code import SearchFolders, config_error, is_built_in, load_object
from areal_like.process.errors import InfrastructureError
from areal_like.process.sandbox.program import START_TIMEOUT_S
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.episodes.phase_times import TOOLS as TOOLS_PHASE
from areal_like.rollout.episodes.tools.base import Tool, ToolResult, tool_of
from areal_like.rollout.episodes.tools.calculator import calculator
from areal_like.rollout.episodes.tools.call_format import END, START, CallFormat, ToolCall
from areal_like.rollout.episodes.tools.python import PythonTool
from areal_like.rollout.episodes.tools.search import Search
from areal_like.rollout.trajectory import Trajectory

MAX_CALLS = 16
"""Calls of one answer that are run."""
ARGS = "workflow.args"
AS_TEXT = "\n<tool_response>\n{result}\n</tool_response>\n"
"""A result in a conversation of texts, which no chat template writes."""


class Tools:
    """The calls of an answer run at the same time. A conversation ends with an answer that calls nothing or was cut
    off, after `max_turns` answers, without room for another, or after `timeout_s`; the reward is that of the last one.
    Your own tools: functions with types and a docstring, `file.py:function`."""

    needs_reward = True

    def __init__(
        self,
        tools: ToolNames | None = None,
        max_turns: Count = 8,
        call_timeout_s: Positive = 10.0,
        timeout_s: Positive | None = None,
        max_result_characters: Count = 2000,
        search_path: str | None = None,
        sandbox: str | None = None,
        call_format: CallFormatName = "json",
        call_start: str = START,
        call_end: str = END,
        result_text: ResultText | None = None,
        error_text: str = "error: {error}",
    ) -> None:
        self._call_timeout_s, self._search_path, self._sandbox = call_timeout_s, search_path, sandbox
        self._max_turns, self._timeout_s, self._max_result = max_turns, timeout_s, max_result_characters
        self._format = CallFormat(call_start, call_end, call_format)
        self._result_text, self._error_text = result_text, error_text
        tools = ["calculator"] if tools is None else tools
        named = [self._built_in(each) if isinstance(each, str) else tool_of(each) for each in tools]
        self.tools = {tool.name: tool for tool in (*named, *map(tool_of, self.own_tools()))}

    @staticmethod
    def load_functions(tools: Sequence[str], places: SearchFolders) -> list[str | Callable[..., Any]]:
        """Functions in place of names such as `file.py:function`."""
        key = f"{ARGS}.tools"
        return [each if is_built_in(each) else load_object(key, each, places) for each in tools]

    def own_tools(self) -> list[Any]:
        """Functions, also async ones, with types and a docstring."""
        return []

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        return await episode.each_sample(self._converse, row)

    async def _converse(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory]:
        start = time.monotonic()
        is_text = isinstance(row["prompt"], str)
        described = None if is_text else [each.described for each in self.tools.values()]
        arguments = {name: tool.arguments for name, tool in self.tools.items()}
        chat = episode.conversation(row["prompt"], described)
        num_calls, num_errors, cut_off = 0, 0, False
        while True:
            answer = await chat.generate()
            calls = [] if answer.is_truncated else self._format.parse(chat.messages[-1]["content"], arguments)
            late = self._timeout_s is not None and time.monotonic() - start >= self._timeout_s
            if not calls or late or len(chat.turns) == self._max_turns:
                break
            with episode.times.timed(TOOLS_PHASE):
                results = await asyncio.gather(*(self._call(place, call) for place, call in enumerate(calls)))
            num_calls, num_errors = num_calls + len(calls), num_errors + sum(each.is_error for each in results)
            chat.observe(*(self._message(*each, is_text) for each in zip(calls, results, strict=True)))
            if cut_off := chat.room < 1:
                break
        (reward,) = await episode.try_score(row, [answer])
        return chat.trajectory(reward, cut_off=cut_off, tool_calls=num_calls, tool_errors=num_errors)

    async def _call(self, place: int, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if call.problem or tool is None:
            unknown = f"there is no tool {call.name[:80]!r}; there are {', '.join(self.tools)}"
            return ToolResult(self._error_text.replace("{error}", call.problem or unknown), is_error=True)
        if place >= MAX_CALLS:
            error = f"at most {MAX_CALLS} calls of an answer are run"
            return ToolResult(self._error_text.replace("{error}", error), is_error=True)
        result = await tool.call(call.arguments, self._call_timeout_s)
        text = result.text[: self._max_result]
        return result._replace(text=self._error_text.replace("{error}", text) if result.is_error else text)

    def _message(self, call: ToolCall, result: ToolResult, is_text: bool) -> dict[str, Any]:
        shown = self._result_text or (AS_TEXT if is_text else "{result}")
        return {"role": "tool", "name": call.name, "content": shown.replace("{result}", result.text)}

    def _built_in(self, name: str) -> Tool:
        try:
            if name == "calculator":
                return tool_of(calculator)
            if name == "python":
                # The sandbox ends programs itself; its own start does not count.
                return tool_of(PythonTool(self._call_timeout_s, self._sandbox), name, extra_s=2 * START_TIMEOUT_S)
            if name == "search" and self._search_path is not None:
                return tool_of(Search(Path(self._search_path).expanduser()), name)
        except (ValueError, OSError, InfrastructureError) as fault:
            key = f"{ARGS}.search_path" if name == "search" else f"{ARGS}.tools"
            raise config_error(key, f"the tool {name} cannot be used: {fault}", fault) from fault
        if name == "search":
            raise config_error(f"{ARGS}.search_path", "is needed for the tool search: a folder of text files")
        raise config_error(f"{ARGS}.tools", f"{name!r} is no tool; there are {', '.join(TOOLS)}")
