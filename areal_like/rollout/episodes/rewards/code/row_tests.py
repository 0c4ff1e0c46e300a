"""The tests of a row, in the forms in which data sets have them."""

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

CHECK = re.compile(r"^def check\(", re.MULTILINE)
"""A function that makes the assertions, given the entry point."""
UNTESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
"""Statements that every program passes."""


@dataclass(frozen=True)
class RowTests:
    """Programs that read and print (`cases`: input and expected output), or functions: statements that assert, and
    `calls` (arguments, and the results of which any is right) of the entry point. `setup` runs before."""

    cases: tuple[tuple[str, str], ...] = ()
    asserts: tuple[str, ...] = ()
    calls: tuple[tuple[list[Any], list[Any]], ...] = ()
    entry_point: str | None = None
    setup: str = ""


def parse_tests(tests: Any, entry_point: str | None, setup: str) -> RowTests:
    """Raises ValueError for a form that is not known, and where nothing is tested: every program would pass."""
    parsed = _parse(tests, entry_point, setup)
    if not (parsed.cases or parsed.calls or any(map(_tests_something, parsed.asserts))):
        hint = "; its function check needs the row's entry_point" if CHECK.search("\n".join(parsed.asserts)) else ""
        raise ValueError(f"the row's tests test nothing: {tests!r:.80}{hint}")
    return parsed


def _parse(tests: Any, entry_point: str | None, setup: str) -> RowTests:
    """Some data sets (APPS) have each result in a list: where all outputs of a row are lists of one, what they hold is
    right, too. A single output could not tell."""
    if isinstance(tests, str) and tests.lstrip().startswith(("[", "{")):
        tests = json.loads(tests)
    if isinstance(tests, str):
        call = "\ncheck(candidate)" if entry_point is not None and CHECK.search(tests) else ""
        return RowTests(asserts=(tests + call,), entry_point=entry_point, setup=setup)
    if isinstance(tests, dict) and "inputs" in tests and "outputs" in tests:
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
        name = tests.get("fn_name") or entry_point
        if name is not None:
            in_lists = all(isinstance(out, list) and len(out) == 1 for _, out in pairs)
            calls = ((_arguments(given), [out, *out] if in_lists else [out]) for given, out in pairs)
            return RowTests(calls=tuple(calls), entry_point=name, setup=setup)
        return RowTests(cases=tuple((_lines(given), _lines(out)) for given, out in pairs))
    if isinstance(tests, list):
        if all(isinstance(each, str) for each in tests):
            return RowTests(asserts=tuple(tests), entry_point=entry_point, setup=setup)
        if all(isinstance(each, dict) and {"input", "output"} <= each.keys() for each in tests):
            return RowTests(cases=tuple((_lines(each["input"]), _lines(each["output"])) for each in tests))
    forms = "assert statements, a list of {input, output}, or {inputs: [...], outputs: [...]}"
    raise ValueError(f"the row's tests are not in a known form: {tests!r:.80}; write {forms}")


def _tests_something(code: str) -> bool:
    """Code that cannot be read fails later, with its reason."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return True
    constants = (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in statements)
    return not all(isinstance(each, UNTESTED) or text for each, text in zip(statements, constants, strict=True))


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _arguments(given: Any) -> list[Any]:
    """Also one JSON value on each line."""
    if isinstance(given, str):
        try:
            return [json.loads(line) for line in given.splitlines() if line.strip()]
        except ValueError as fault:
            form = "arguments are a list, or a text with one JSON value on each line"
            raise ValueError(f"the row's tests have the input {given!r:.60}; {form}") from fault
    return given if isinstance(given, list) else [given]
