"""No test depends on time: it would fail on a slow machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time"}
MEASURED = {"seconds", "took", "elapsed", "wall_s", "cpu_s", "took_s", "elapsed_s"}
LEAST_LIMIT_S = 10
SUSPECT = re.compile(rf"\b(?:{'|'.join(CLOCKS)}|timeout|wait_for)\(|\b(?:{'|'.join(MEASURED)})\b")
"""What a file has that has a limit on time. It spares the others the analysis."""


def sources() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if not {"bench", "gpu"} & {*path.relative_to(TESTS).parts}]


def is_clock(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return getattr(called, "attr", getattr(called, "id", "")) in CLOCKS


def is_duration(node: ast.expr, durations: set[str]) -> bool:
    """A difference of two clock readings, a name that holds one, or a multiple of these."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return any(is_clock(child) for child in ast.walk(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return is_duration(node.left, durations)
    if isinstance(node, ast.Call):
        return any(is_duration(argument, durations) for argument in node.args)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in durations


def durations_in(tree: ast.Module) -> set[str]:
    """Names of variables that hold a duration, or a list of them."""
    names = set(MEASURED)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_duration(node.value, names):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Call) and any(is_duration(given, names) for given in node.args):
            held = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "append" else None
            names |= {held.id} if isinstance(held, ast.Name) else set()
    return names


def is_constant_time(node: ast.expr) -> bool:
    """A clock reading plus a constant that is too small for a limit against hanging."""
    numbers = [child.value for child in ast.walk(node) if isinstance(child, ast.Constant)]
    return isinstance(node, ast.BinOp) and any(isinstance(n, int | float) and n < LEAST_LIMIT_S for n in numbers)


def limits_on_time(tree: ast.Module) -> Iterator[int]:
    """Lines that assert an upper limit on a duration."""
    durations = durations_in(tree)
    for claim in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for node in (node for node in ast.walk(claim.test) if isinstance(node, ast.Compare)):
            values = [node.left, *node.comparators]
            for place, operator in enumerate(node.ops):
                if not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    continue
                ordered = values[place : place + 2]
                small, large = ordered if isinstance(operator, ast.Lt | ast.LtE) else ordered[::-1]
                if is_duration(small, durations) or (is_clock(small) and is_constant_time(large)):
                    yield claim.lineno


def short_timeouts(tree: ast.Module) -> Iterator[int]:
    """Lines with a timeout that a slow machine would exceed."""
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        limit = node.args[-1].value if isinstance(node.args[-1], ast.Constant) else None
        if name in ("timeout", "wait_for") and isinstance(limit, int | float) and limit < LEAST_LIMIT_S:
            yield node.lineno


def test_no_test_depends_on_the_speed_of_the_machine() -> None:
    problems = {
        str(path.relative_to(TESTS)): lines
        for path in sources()
        if SUSPECT.search(text := path.read_text(encoding="utf-8"))
        and (tree := ast.parse(text))
        and (lines := [*limits_on_time(tree), *short_timeouts(tree)])
    }
    assert not problems, "durations are measured by tests/bench"


@pytest.mark.parametrize(
    ("claim", "is_one"),
    [
        ("assert time.monotonic() - began < 5", True),
        ("assert code == 0 and 1 < seconds < 5", True),
        ("assert 5 > time.process_time() - began", True),
        ("assert found.wall_s <= 20", True),
        ("spent = monotonic() - began\nassert spent < 0.015", True),
        ("assert (time.monotonic() - began) * 1000 < 15", True),
        ("times.append(time.perf_counter() - start)\nassert max(times) < 0.02", True),
        ("assert time.monotonic() < began + 0.015", True),
        ("assert time.monotonic() - began >= 0.3", False),
        ("assert time.monotonic() < ends, 'it hangs'", False),
        ("assert seconds > 2", False),
    ],
)
def test_a_limit_on_time_is_recognized(claim: str, is_one: bool) -> None:
    assert bool(list(limits_on_time(ast.parse(claim)))) == is_one


def test_a_limit_that_a_slow_machine_would_reach_is_recognized() -> None:
    assert list(
        short_timeouts(ast.parse("async with asyncio.timeout(0.05):\n    pass\nawait asyncio.wait_for(x, 60)"))
    ) == [1]
