"""Which keys the tests show: their markers `shows` and `shows_no_effect`.

A marker on a test lists dotted keys: `@pytest.mark.shows("actor.eps_clip", "actor.c_clip")`. `{name}` in a key stands
for the value of the test's parameter `name`: `@pytest.mark.shows("sglang.{name}")`.
"""

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SHOWS, SHOWS_NO_EFFECT = "shows", "shows_no_effect"


class Shown(NamedTuple):
    """Key -> the tests that show its effect, and those that show that it has none."""

    effect: Mapping[str, tuple[str, ...]]
    no_effect: Mapping[str, tuple[str, ...]]


@cache
def shown() -> Shown:
    """The markers of all tests, read by importing the files that have one."""
    tables: dict[str, dict[str, dict[str, None]]] = {SHOWS: {}, SHOWS_NO_EFFECT: {}}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "pytest.mark.shows" not in path.read_text(encoding="utf-8"):
            continue
        file = path.relative_to(ROOT)
        module = importlib.import_module(".".join(file.with_suffix("").parts))
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for kind, key in _keys_of(getattr(test, "pytestmark", [])):
                    tables[kind].setdefault(key, {})[f"{file}::{name}"] = None
    effect, no_effect = ({key: tuple(tests) for key, tests in table.items()} for table in tables.values())
    return Shown(effect, no_effect)


def keys_of(item: Any) -> list[str]:
    """The keys that one case of a test shows, as pytest has collected it."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    marks = (*item.iter_markers(SHOWS), *item.iter_markers(SHOWS_NO_EFFECT))
    return [key for mark in marks for key in keys_of_mark(mark, parameters)]


def keys_of_mark(mark: Any, parameters: Mapping[str, Any]) -> list[str]:
    """The keys of one marker, filled in with the parameters of one case of the test."""
    return [key.format(**parameters) for key in mark.args]


def _keys_of(marks: list[Any]) -> Iterator[tuple[str, str]]:
    """(marker, key) of every case of a test."""
    tables = [_parameter_values(mark) for mark in marks if mark.name == "parametrize"]
    for mark in (mark for mark in marks if mark.name in (SHOWS, SHOWS_NO_EFFECT)):
        names = {name for key in mark.args for _, name, _, _ in Formatter().parse(key) if name}
        relevant = [table for table in tables if names & set(table[0])]
        for case in product(*relevant):
            parameters = {name: value for values in case for name, value in values.items()}
            yield from ((mark.name, key) for key in keys_of_mark(mark, parameters))


def _parameter_values(mark: Any) -> list[dict[str, Any]]:
    """Each case of a `parametrize` marker as parameter -> value."""
    names = mark.args[0]
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = []
    for case in mark.args[1]:
        values: Any = getattr(case, "values", None) if hasattr(case, "marks") else case if len(names) > 1 else (case,)
        cases.append(dict(zip(names, values, strict=True)))
    return cases
