"""The tests of a row, in the forms in which data sets have them."""

import ast
import builtins
import json
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

CHECK = re.compile(r"^def check\(", re.MULTILINE)
"""A function that makes the assertions, given the entry point."""
UNTESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
"""Statements that every program passes."""
BY_TEXT = {"eval", "exec", "globals", "locals", "vars"}
"""They find functions of the answer by names that are not in the code."""


@dataclass(frozen=True)
class RowTests:
    """Programs that read and print (`cases`: input and expected output), or functions: statements that assert, and
    `calls` (arguments, and the results of which any is right) of the entry point. `setup` runs before."""

    cases: tuple[tuple[str, str], ...] = ()
    asserts: tuple[str, ...] = ()
    calls: tuple[tuple[list[Any], list[Any]], ...] = ()
    entry_point: str | None = None
    setup: str = ""


def parse_tests(tests: Any, entry_point: str | None, setup: str | list[str]) -> RowTests:
    """Raises ValueError for a form that is not known, and where nothing is tested: every program would pass.
    Some data sets (MBPP) have the imports of `setup` in a list."""
    setup = setup if isinstance(setup, str) else "\n".join(setup)
    parsed = _parse(tests, entry_point, setup)
    if not (parsed.cases or parsed.calls or any(map(_tests_something, parsed.asserts))):
        hint = "; its function check needs the row's entry_point" if CHECK.search("\n".join(parsed.asserts)) else ""
        raise ValueError(f"the row's tests test nothing: {tests!r:.80}{hint}")
    if not parsed.asserts or parsed.entry_point is not None:
        return parsed
    return replace(parsed, entry_point=_built_in_name(tests, "\n".join(parsed.asserts), setup))


def _parse(tests: Any, entry_point: str | None, setup: str) -> RowTests:
    """Some data sets (APPS) have each result in a list: where all outputs of a row are lists of one, what they hold is
    right, too. A single output could not tell. Others (PRIME) have inputs and outputs of functions as JSON text: what
    an output holds is right, as is the text."""
    if isinstance(tests, str) and tests.lstrip().startswith(("[", "{")):
        tests = json.loads(tests)
    if isinstance(tests, str):
        has_check = entry_point is not None and CHECK.search(tests) is not None
        asserts = (f"{tests}\ncheck(candidate)",) if has_check else tuple(_each_assert(tests))
        return RowTests(asserts=asserts, entry_point=entry_point, setup=setup)
    if isinstance(tests, dict) and "inputs" in tests and "outputs" in tests:
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
        return _of_pairs(pairs, tests.get("fn_name") or entry_point, setup)
    if isinstance(tests, list):
        if all(isinstance(each, str) for each in tests):
            return RowTests(asserts=tuple(tests), entry_point=entry_point, setup=setup)
        if all(isinstance(each, dict) and {"input", "output"} <= each.keys() for each in tests):
            kinds = [each.get("testtype") for each in tests]
            if "functional" in kinds and not entry_point:
                raise ValueError(f"the row's tests are for a function; they need the row's entry_point: {tests!r:.80}")
            name = None if all(kind == "stdin" for kind in kinds) else entry_point
            return _of_pairs([(each["input"], each["output"]) for each in tests], name, setup)
    forms = "assert statements, a list of {input, output}, or {inputs: [...], outputs: [...]}"
    raise ValueError(f"the row's tests are not in a known form: {tests!r:.80}; write {forms}")


def _of_pairs(pairs: list[tuple[Any, Any]], name: str | None, setup: str) -> RowTests:
    """Inputs and outputs of the function with this name, or without one of the program."""
    if not name:
        return RowTests(cases=tuple((_lines(given), _lines(out)) for given, out in pairs))
    in_lists = all(isinstance(out, list) and len(out) == 1 for _, out in pairs)
    calls = ((_arguments(given), [out, *out] if in_lists else _results(given, out)) for given, out in pairs)
    return RowTests(calls=tuple(calls), entry_point=name, setup=setup)


def _each_assert(code: str) -> Iterator[str]:
    """The statements up to each assertion: they run one after the other, and each is a test. What follows the last one
    belongs to it. All of it where it cannot be read, which fails later, with its reason."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        yield code
        return
    ends = [place for place, each in enumerate(statements, 1) if isinstance(each, ast.Assert)][:-1]
    for begin, end in pairwise([0, *ends, len(statements)]):
        yield ast.unparse(ast.Module(statements[begin:end], []))


def _tests_something(code: str) -> bool:
    """Code that cannot be read fails later, with its reason."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return True
    constants = (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in statements)
    return not all(isinstance(each, UNTESTED) or text for each, text in zip(statements, constants, strict=True))


def _built_in_name(tests: Any, code: str, setup: str) -> str | None:
    """The function of the answer where it has the name of a built-in one. In tests that is the built-in one, unless it
    is all that they use. The answer has no say in it: it could replace what compares its results."""
    try:
        used, defined = _names(code)
        used_before, defined_before = _names(setup)
    except SyntaxError:
        return None
    defined |= defined_before
    if any(name in BY_TEXT or not hasattr(builtins, name) for name in (used | used_before) - defined):
        return None
    alone = used - defined
    functions = sorted(name for name in alone if not (name.startswith("__") or _is_exception(name)))
    if not functions:
        raise ValueError(f"the row's tests test nothing: {tests!r:.80}; they use no function of the answer")
    if len(functions) > 1:
        several = f"use built-in functions alone ({', '.join(functions)}): {tests!r:.80}"
        raise ValueError(f"the row's tests {several}; if one of them is the answer's, name it as the row's entry_point")
    return functions[0]


def _names(code: str) -> tuple[set[str], set[str]]:
    """Global names that the code uses, and those that it defines or imports."""
    module = symtable.symtable(code, "tests", "exec")
    used, defined = set(), set()
    for table in _scopes(module):
        for symbol in table.get_symbols():
            if table is module or symbol.is_global():
                used |= {symbol.get_name()} if symbol.is_referenced() else set()
                defined |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
    return used, defined


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for each in table.get_children():
        yield from _scopes(each)


def _is_exception(name: str) -> bool:
    value = getattr(builtins, name)
    return isinstance(value, type) and issubclass(value, BaseException)


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


def _results(given: Any, out: Any) -> list[Any]:
    """Any of which is right."""
    if isinstance(given, str) and isinstance(out, str):
        try:
            return [out, json.loads(out)]
        except ValueError:
            pass
    return [out]
