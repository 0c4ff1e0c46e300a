"""Tool: a function that the model may call, described by its signature."""

import asyncio
import inspect
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from areal_like.process.errors import InfrastructureError, ends_task
from areal_like.process.scrubbed_output import scrubbed

JSON_TYPES: dict[Any, str] = {
    **{str: "string", bool: "boolean", int: "integer", float: "number"},
    **{list: "array", dict: "object", type(None): "null"},
}

MAX_HANGING = 16
"""Calls of a tool, or of the function of an agent, that may run on in threads after their limit."""


class ToolResult(NamedTuple):
    """What the model sees of a call."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Tool:
    """`parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    extra_s: float = 0.0
    """Beyond the limit of a call, for what keeps that limit itself."""
    hanging: list[threading.Thread] = field(default_factory=list, compare=False)
    """Of calls that took too long; a thread cannot be ended."""

    @property
    def described(self) -> dict[str, Any]:
        """For the chat template."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def arguments(self) -> dict[str, Any]:
        """Name -> JSON Schema."""
        properties: dict[str, Any] = self.parameters["properties"]
        return properties

    def misfit(self, arguments: Any) -> str:
        """Why it cannot be called with them; "" if it can."""
        if not isinstance(arguments, dict):
            return "the arguments are no JSON object"
        known, required = self.arguments, self.parameters["required"]
        missing = [name for name in required if name not in arguments]
        unknown = [name for name in arguments if name not in known]
        if missing or unknown:
            what = f"{', '.join(missing)} is missing" if missing else f"there is no argument {', '.join(unknown)}"
            return f"{what}; it takes {', '.join(known) or 'none'}"
        wrong = next((name for name, value in arguments.items() if not fits(known[name], value)), None)
        return "" if wrong is None else f"{wrong} is not of the type {known[wrong]}"

    async def call(self, arguments: Any, timeout_s: float) -> ToolResult:
        """A call that is wrong, fails or takes too long has a result that says so. A sandbox that does not work raises:
        that is no fault of the model."""
        if reason := self.misfit(arguments):
            return ToolResult(_shown(reason), is_error=True)
        self.hanging[:] = [each for each in self.hanging if each.is_alive()]
        if len(self.hanging) >= MAX_HANGING:
            message = f"the tool {self.name} hangs: {MAX_HANGING} of its calls still run after their limit"
            raise InfrastructureError(f"{message} of {timeout_s:g} s; give it a limit of its own, or make it async")
        try:
            return ToolResult(_shown(await asyncio.wait_for(self._run(arguments), timeout_s + self.extra_s)))
        except InfrastructureError:
            raise
        except TimeoutError:
            return ToolResult(f"{self.name} took longer than {timeout_s:g} s", is_error=True)
        except Exception as fault:
            return ToolResult(_shown(f"{type(fault).__name__}: {fault}"), is_error=True)

    async def _run(self, arguments: dict[str, Any]) -> Any:
        """What would end the worker, or its group without a word, becomes an error of the tool."""
        try:
            is_async = inspect.iscoroutinefunction(self.function)
            result = self.function(**arguments) if is_async else await self._in_thread(arguments)
            return await result if inspect.isawaitable(result) else result
        except (SystemExit, asyncio.CancelledError) as raised:
            if ends_task(raised):
                raise
            raise _contained(raised) from raised

    async def _in_thread(self, arguments: dict[str, Any]) -> Any:
        """In a thread of its own: one that hangs keeps no other call waiting, and the worker can end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, fault: BaseException | None) -> None:
            if done.done():
                return
            if fault is None:
                done.set_result(result)
            else:
                done.set_exception(fault)

        def work() -> None:
            result, fault = None, None
            try:
                result = self.function(**arguments)
            except StopIteration as raised:  # which no future takes
                fault = _contained(raised)
            except Exception as raised:
                fault = raised
            except BaseException as raised:  # such as SystemExit, which would end the event loop
                fault = _contained(raised)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, fault)

        thread = threading.Thread(target=work, daemon=True, name=f"tool {self.name}")
        thread.start()
        try:
            return await done
        finally:
            if not done.done() or done.cancelled():
                self.hanging.append(thread)


def _contained(raised: BaseException) -> Exception:
    return RuntimeError(f"it raised {type(raised).__name__}")


def _shown(result: Any) -> str:
    """Without halves of characters, which no tokenizer takes, and without secrets, which files would get."""
    return scrubbed(str(result).encode(errors="replace").decode())


WITHOUT_NAME = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


def tool_of(function: Callable[..., Any], name: str = "", extra_s: float = 0.0) -> Tool:
    """A tool of a function with types and a docstring. Its parameters may be texts, numbers, true or false, lists,
    mappings, one of several values, or nothing. Also an instance with `__call__`, by the name of its class."""
    if inspect.isclass(function):
        raise ValueError(f"the tool {function.__name__} is a class, not a function; give an instance of it")
    call = function if inspect.isroutine(function) else type(function).__call__
    hints = get_type_hints(call)
    name = name or getattr(function, "__name__", type(function).__name__)
    if placed := [each.name for each in inspect.signature(function).parameters.values() if each.kind in WITHOUT_NAME]:
        raise ValueError(f"the tool {name} takes {placed[0]} by its place, and a model names all arguments")
    takes = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    properties = {each.name: _schema(hints.get(each.name, Any)) for each in takes}
    required = [each.name for each in takes if each.default is each.empty]
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(name, inspect.getdoc(function) or "", parameters, function, extra_s)


def _schema(hint: Any) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each) for each in args]}
    if origin is list and args:
        return {"type": "array", "items": _schema(args[0])}
    known = JSON_TYPES.get(origin or hint)
    return {"type": known} if known else {}


def fits(schema: Any, value: Any) -> bool:
    """Whether it has the type, as far as a schema says one in a way that is known here."""
    if not isinstance(schema, dict):
        return True
    if isinstance(values := schema.get("enum"), list):
        return value in values
    if isinstance(schemas := schema.get("anyOf"), list):
        return any(fits(each, value) for each in schemas)
    kind = schema.get("type")
    if isinstance(kind, list):
        return any(fits({**schema, "type": each}, value) for each in kind)
    if kind == "array":
        return isinstance(value, list) and all(fits(schema.get("items"), each) for each in value)
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    return kind is None or any(JSON_TYPES[each] == kind for each in JSON_TYPES if isinstance(value, each))
