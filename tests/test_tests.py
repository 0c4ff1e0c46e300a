"""What no test does: it would fail on a slow machine, or say nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time"}
MEASURED = {"seconds", "took", "elapsed", "wall_s", "cpu_s", "took_s", "elapsed_s"}
SMALLER = (ast.Lt, ast.LtE)


def sources() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if not {"bench", "gpu"} & {*path.relative_to(TESTS).parts}]


def is_duration(node: ast.expr) -> bool:
    """The difference between two looks at a clock, or a name that says so."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        calls = [child.func for child in ast.walk(node) if isinstance(child, ast.Call)]
        return any(isinstance(call, ast.Attribute) and call.attr in CLOCKS for call in calls)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in MEASURED


def limits_on_time(tree: ast.Module) -> Iterator[int]:
    """Lines on which a test wants something to take less than so long."""
    for claim in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for node in (node for node in ast.walk(claim.test) if isinstance(node, ast.Compare)):
            values = [node.left, *node.comparators]
            for place, operator in enumerate(node.ops):
                small = values[place] if isinstance(operator, SMALLER) else values[place + 1]
                if is_duration(small) and isinstance(operator, (*SMALLER, ast.Gt, ast.GtE)):
                    yield claim.lineno


def test_no_test_wants_something_to_be_quick() -> None:
    found = {
        str(path.relative_to(TESTS)): lines
        for path in sources()
        if (lines := list(limits_on_time(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert not found, "how long something takes is measured by tests/bench"


@pytest.mark.parametrize(
    ("claim", "is_one"),
    [
        ("assert time.monotonic() - began < 5", True),
        ("assert code == 0 and 1 < seconds < 5", True),
        ("assert 5 > time.process_time() - began", True),
        ("assert found.wall_s <= 20", True),
        ("assert time.monotonic() - began >= 0.3", False),
        ("assert time.monotonic() < ends, 'it hangs'", False),
        ("assert seconds > 2", False),
    ],
)
def test_a_limit_on_time_is_recognized(claim: str, is_one: bool) -> None:
    assert bool(list(limits_on_time(ast.parse(claim)))) == is_one
