"""Runs in the sandbox, as two programs: `serve` has the functions of an answer, `check` the tests that call them.

Only plain values pass between them, so nothing in an answer can reach the tests: neither their expected values, nor
how they compare, nor their result. Standard library only, as nothing else can be seen there.
"""

import builtins
import contextlib
import json
import os
import socket
import sys
import types
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

ANSWER, TESTS = "answer.py", "tests.json"
MAX_LINE = 1 << 24
"""Bytes of a call or of its result."""
MAX_TEXT = 200
OF_THE_TESTS = (AssertionError, StopIteration, StopAsyncIteration)
"""Their own ways to fail and to end a loop: an answer that raises them has none of these effects."""

SEQUENCES: dict[str, Callable[..., Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class RemoteFault(BaseException):
    """A call had no usable result. Tests that expect an exception do not take it for one."""


class BrokenTests(BaseException):
    """No program could pass: neither a result of a test, nor an exception for which one may wait."""


def encode(value: Any) -> Any:
    """Of subclasses, such as a Counter, the plain value."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, float | complex):
        return {"float" if isinstance(value, float) else "complex": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[encode(name), encode(each)] for name, each in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(each) for each in value]}
    if isinstance(value, range | deque | KeysView | ValuesView | ItemsView | Iterator):
        return [encode(each) for each in value]
    raise TypeError(f"{type(value).__name__} is not a plain value")


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "dict":
        return {decode(name): decode(each) for name, each in content}
    if kind in SEQUENCES:
        return SEQUENCES[kind](decode(each) for each in content)
    if kind == "bytes":
        return bytes.fromhex(content)
    return int(content, 16) if kind == "int" else {"float": float, "complex": complex}[kind](content)


def serve(wire: socket.socket) -> None:
    """Answers calls until the tests end."""
    module = types.ModuleType("answer")
    names = vars(module)
    sys.modules["answer"] = module  # where dataclasses look up the module of a class
    fault: BaseException | None = None
    try:
        with open(ANSWER, encoding="utf-8") as file:
            exec(compile(file.read(), ANSWER, "exec"), names)
    except BaseException as raised:
        fault = raised
    for line in wire.makefile("rb"):
        request = json.loads(line)
        try:
            if fault is not None:
                raise fault
            arguments, named = decode(request["arguments"]), decode(request["named"])
            reply = {"value": encode(_find(names, request["name"])(*arguments, **named))}
        except BaseException as raised:
            reply = {"raised": type(raised).__name__, "text": _text(raised)}
        wire.sendall(json.dumps(reply).encode() + b"\n")


def _find(names: dict[str, Any], name: str) -> Callable[..., Any]:
    if name not in names and hasattr(names.get("Solution"), name):
        return getattr(names["Solution"](), name)  # type: ignore[no-any-return]
    return names[name]  # type: ignore[no-any-return]


class Remote:
    """A function of the answer, for the tests."""

    def __init__(self, wire: socket.socket, lines: Any, name: str) -> None:
        self._wire, self._lines, self._name = wire, lines, name

    def __bool__(self) -> bool:
        raise RemoteFault(f"{self._name} is compared without a call")

    def __getattr__(self, name: str) -> Any:
        """Functions have none here: most likely it is a module. Names with an underscore are what Python looks up."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise BrokenTests(f"`{self._name}` is not imported by the tests: {self._name}.{name}; import it in `setup`")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        call = {"name": self._name, "arguments": encode(list(arguments)), "named": encode(named)}
        try:
            self._wire.sendall(json.dumps(call).encode() + b"\n")
            reply = json.loads(self._lines.readline(MAX_LINE))
            if "raised" in reply:
                kind, text = reply["raised"], str(reply["text"])[:MAX_TEXT]
            else:
                return decode(reply["value"])
        except BaseException as fault:
            raise RemoteFault(f"{self._name} gave no result: {_text(fault)}") from None
        exception = getattr(builtins, kind, None) if isinstance(kind, str) else None
        if isinstance(exception, type) and issubclass(exception, Exception) and exception not in OF_THE_TESTS:
            try:
                raised = exception(text)
            except Exception:
                raised = None
            if raised is not None:
                raise raised
        raise RemoteFault(f"{self._name} raised {kind}: {text}")


class Names(dict[str, Any]):
    """What the tests neither define nor import is a function of the answer."""

    def __init__(self, remote: Callable[[str], Remote]) -> None:
        super().__init__(__name__="tests")
        self._remote = remote

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        return self._remote(name)


def check(wire: socket.socket) -> dict[str, Any]:
    """The result of each test: "" if it passed, else why not. Or `broken`: the tests themselves cannot run."""
    with open(TESTS, encoding="utf-8") as file:
        tests = json.load(file)
    lines = wire.makefile("rb")
    names = Names(lambda name: Remote(wire, lines, name))
    entry = tests["entry_point"]
    try:
        exec(tests["setup"], names)
        if entry is not None:
            names[entry] = names["candidate"] = Remote(wire, lines, entry)
        steps = [compile(test, "tests", "exec") for test in tests["asserts"]]
        results = [_try(exec, step, names) for step in steps]
    except BrokenTests as fault:
        return {"broken": str(fault)[:MAX_TEXT]}
    except Exception as fault:
        return {"broken": _text(fault)}
    for given, right in tests["calls"]:
        results.append(_try(_compare, names["candidate"], given, right))
    return {"results": results}


def _try(test: Callable[..., object], *arguments: Any) -> str:
    try:
        test(*arguments)
    except BrokenTests:
        raise
    except BaseException as fault:
        return _text(fault)
    return ""


def _compare(function: Remote, given: list[Any], right: list[Any]) -> None:
    """JSON has no tuples."""
    result = json.loads(json.dumps(function(*given)))
    assert result in right, f"{result!r:.80} is not {right[-1]!r:.80}"


def _text(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"[:MAX_TEXT]


def main() -> None:
    role, descriptor = sys.argv[1], int(sys.argv[2])
    with socket.socket(fileno=descriptor) as wire:
        if role == "serve":
            serve(wire)
        else:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # what tests print
                verdict = check(wire)
            print(json.dumps(verdict))


if __name__ == "__main__":
    main()
