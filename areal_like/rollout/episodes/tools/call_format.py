"""Calls of tools in the text of an answer, by format: JSON, tags, or Python."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from areal_like.rollout.episodes.tools.base import fits

START, END = "<tool_call>", "</tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*?)(?:</function>\s*)?", re.DOTALL)
PARAMETER, PARAMETER_END = re.compile(r"<parameter=([^<>\n]*)>\n?"), "</parameter>"
MAYBE_CALL = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")
PYTHON_MARKS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
MAX_PYTHON = 20_000
"""Characters. A longer text is not parsed."""


Arguments = Mapping[str, Mapping[str, Any]]
"""Name of an argument -> its JSON Schema, in the order of the tool."""


class ToolCall(NamedTuple):
    """`problem` says why the text is no call; "" if it is one."""

    name: str
    arguments: Any
    problem: str = ""


class CallFormat:
    """Finds the calls in an answer. A call between marks that is the last one may lack the second mark."""

    def __init__(self, start: str = START, end: str = END, name: str = "json") -> None:
        if name not in FORMATS:
            raise ValueError(f"there is no format {name!r}; there are {', '.join(FORMATS)}")
        if not start or not end:
            raise ValueError("the marks of a call cannot be empty")
        self._start, self._is_marked, self._parse = start, name in MARKED, FORMATS[name]
        self._calls = re.compile(f"{re.escape(start)}(.*?)(?:{re.escape(end)}|\\Z)", re.DOTALL)

    def parse(self, text: str, tools: Mapping[str, Arguments] | None = None) -> list[ToolCall]:
        """In the order of the text. `tools` have the arguments of each tool."""
        return list(self._parse(text, self._calls, tools or {}))

    def text_before(self, text: str) -> str:
        """What an answer with calls has before the first one."""
        return text.partition(self._start)[0].strip() if self._is_marked else ""


def _json(text: str, marks: re.Pattern[str], tools: Mapping[str, Arguments]) -> Iterator[ToolCall]:
    """`{"name": "add", "arguments": {"a": 1}}` between the marks, as Hermes and Qwen write."""
    for found in marks.findall(text):
        yield _json_call(found.strip())


def _read_json(text: str) -> Any:
    """Raises ValueError also for what Python reads, but no client could be sent: NaN, 1e999, half of a character."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def _json_call(text: str) -> ToolCall:
    try:
        call = _read_json(text)
    except (ValueError, RecursionError) as fault:
        return ToolCall("", None, f"the call is not JSON: {fault}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", None, 'a call is a JSON object with "name" and "arguments"')
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # some models write JSON within JSON
        try:
            arguments = _read_json(arguments)
        except (ValueError, RecursionError) as fault:
            return ToolCall(call["name"], None, f"the arguments are not JSON: {fault}")
    return ToolCall(call["name"], arguments)


def _xml(text: str, marks: re.Pattern[str], tools: Mapping[str, Arguments]) -> Iterator[ToolCall]:
    """`<function=add><parameter=a>1</parameter></function>` between the marks, as Qwen3-Coder writes."""
    for found in marks.findall(text):
        match = FUNCTION.fullmatch(found)
        if match is None:
            yield ToolCall("", None, "a call is <function=NAME> with <parameter=NAME>VALUE</parameter> in it")
            continue
        name, body = match[1].strip(), match[2]
        schemas = tools.get(name, {})
        values = dict(_parameters(body))
        yield ToolCall(name, {each: _typed(schemas.get(each, {}), value) for each, value in values.items()})


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """Each value up to the next end. It is split there first: a pattern with both marks would search the whole rest for
    an end from each of many beginnings without one."""
    for part in body.split(PARAMETER_END)[:-1]:
        if begun := PARAMETER.search(part):
            yield begun[1].strip(), part[begun.end() :].removesuffix("\n")


def _typed(schema: Mapping[str, Any], text: str) -> Any:
    """A value that was written without quotes: a text where one is expected, or the only one that fits; else JSON."""
    values = schema.get("enum")
    if schema.get("type") == "string" or (isinstance(values, list) and text in values):
        return text
    try:
        value = _read_json(text.strip())
    except (ValueError, RecursionError):
        value = {"True": True, "False": False, "None": None}.get(text.strip(), text)
    return text if fits(schema, text) and not fits(schema, value) else value


def _python(text: str, marks: re.Pattern[str], tools: Mapping[str, Arguments]) -> Iterator[ToolCall]:
    """`[add(a=1, b=2)]`, the whole answer, as Llama writes: parsed, never executed."""
    for mark in PYTHON_MARKS:
        text = text.replace(mark, "")
    text = text.strip()
    if not MAYBE_CALL.match(text):
        return
    try:
        tree = ast.parse(text if len(text) <= MAX_PYTHON else "", mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else []
        found = [_python_call(each, tools) for each in calls]
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError, SystemError):
        # The parser's own limits, too; a type is wrong in `{[]}`, a number too large in `1e999 + 1j`.
        found = []
    yield from found or [ToolCall("", None, "calls are a list as [name(argument=value)]")]


def _python_call(node: ast.expr, tools: Mapping[str, Arguments]) -> ToolCall:
    if not isinstance(node, ast.Call) or any(each.arg is None for each in node.keywords):
        raise ValueError("no call")
    name = ast.unparse(node.func)
    takes = list(tools.get(name, ()))
    if len(node.args) > len(takes):
        return ToolCall(name, {}, f"{name} takes no {len(takes) + 1}. argument" if name in tools else "")
    values = [*zip(takes, node.args, strict=False), *((str(each.arg), each.value) for each in node.keywords)]
    return ToolCall(name, {argument: ast.literal_eval(value) for argument, value in values})


Parser = Callable[[str, re.Pattern[str], Mapping[str, Arguments]], Iterator[ToolCall]]
FORMATS: dict[str, Parser] = {"json": _json, "xml": _xml, "python": _python}
"""By the name in `call_format`."""
MARKED = ("json", "xml")
"""Formats with marks before and after a call."""
