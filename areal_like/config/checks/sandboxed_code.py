"""Which rewards run programs of answers in the sandbox of `reward.sandbox`."""

import ast
from pathlib import Path

from areal_like.config.built_in import SANDBOXED
from areal_like.config.checks.user_code import find_source, is_built_in, split_name

SANDBOX, KIND = "Sandbox", "kind"


def runs_programs(name: str, folder: Path) -> bool:
    """A built-in one, or a user's whose file makes a `Sandbox` without a kind of its own. It is parsed, not imported;
    `folder` is that of the experiment's file."""
    if is_built_in(name):
        return name in SANDBOXED
    source = find_source(split_name(name)[0], folder)
    try:
        tree = ast.parse("" if source is None else source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return False  # which other checks report
    return any(_makes_sandbox(node) for node in ast.walk(tree))


def _makes_sandbox(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or any(each.arg in (KIND, None) for each in node.keywords):
        return False
    called = node.func
    return SANDBOX in (getattr(called, "id", ""), getattr(called, "attr", ""))
