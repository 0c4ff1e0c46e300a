"""Calls of tools in the text of an answer: JSON between two marks, as Hermes and Qwen write them."""

import json
import re
from typing import Any, NamedTuple


class ToolCall(NamedTuple):
    """`problem` says why the text is no call; "" if it is one."""

    name: str
    arguments: Any
    problem: str = ""


class CallFormat:
    """`{"name": "add", "arguments": {"a": 1}}` between the marks. A call at the end may lack the second one."""

    def __init__(self, start: str = "<tool_call>", end: str = "</tool_call>") -> None:
        if not start or not end:
            raise ValueError("the marks of a call cannot be empty")
        self.start = start
        self._calls = re.compile(f"{re.escape(start)}(.*?)(?:{re.escape(end)}|\\Z)", re.DOTALL)

    def parse(self, text: str) -> list[ToolCall]:
        """In the order of the text."""
        return [_parse(found.strip()) for found in self._calls.findall(text)]


def _parse(text: str) -> ToolCall:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as fault:
        return ToolCall("", None, f"the call is not JSON: {fault}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", None, 'a call is a JSON object with "name" and "arguments"')
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # some models write JSON within JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as fault:
            return ToolCall(call["name"], None, f"the arguments are not JSON: {fault}")
    return ToolCall(call["name"], arguments)
