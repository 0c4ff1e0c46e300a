"""Which puzzles of reasoning-gym have a scorer that evaluates text, read in the sources of the installed package."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "reasoning_gym"
SCORER = "score_answer"
EVALUATES = {"eval", "exec", "compile", "parse_expr", "sympify", "S", "lambdify", "literal_eval", "__import__", "loads"}
"""Functions that may compute what a text says. `json.loads` is none of them."""
HARMLESS = {("json", "loads"), ("orjson", "loads"), ("ast", "literal_eval"), ("re", "compile")}
NAMES = {"register_dataset", "DATASET_NAME"}


@cache
def evaluating_puzzles() -> frozenset[str]:
    """Their names, without importing the package; empty where it is not installed. Each function that a scorer may call
    counts, also those of other files of the package, and text of the puzzle as well as of the answer."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return frozenset()
    root = Path(spec.origin).parent
    found = set[str]()
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "register_dataset(" in text:
            module = _Module(path, root, text)
            if module.evaluates({SCORER, *module.bases}):
                found |= module.puzzles
    return frozenset(found)


class _Module:
    def __init__(self, path: Path, root: Path, text: str) -> None:
        self._path, self._root, self._tree = path, root, ast.parse(text)
        nodes = list(ast.walk(self._tree))
        self._functions: dict[str, list[ast.AST]] = {}
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
        self._imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        self.bases = {_last(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases}

    @property
    def puzzles(self) -> set[str]:
        """What the file registers: the first argument, or the constant that it names."""
        found = set[str]()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and _last(node.func) in NAMES:
                found |= _texts(node.args[:1])
            elif isinstance(node, ast.Assign) and NAMES & {_last(each) for each in node.targets}:
                found |= _texts([node.value])
        return found

    def evaluates(self, names: set[str]) -> bool:
        """Whether one of the functions, or one that they name, evaluates text."""
        pending, seen = list(names), set(names)
        while pending:
            name = pending.pop()
            bodies = self._functions.get(name, [])
            if not bodies and self._imports_evaluation(name):
                return True
            for node in (node for body in bodies for node in ast.walk(body)):
                if isinstance(node, ast.Call) and self._is_evaluation(node.func):
                    return True
                if isinstance(node, ast.Name | ast.Attribute) and (used := _last(node)) not in seen:
                    seen.add(used)
                    pending.append(used)
        return False

    def _is_evaluation(self, called: ast.expr) -> bool:
        name = _last(called)
        owner = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
        return name in EVALUATES and name not in self._functions and (owner, name) not in HARMLESS

    def _imports_evaluation(self, name: str) -> bool:
        """Whether a function or a class of another file of the package evaluates text."""
        for path in self._files_of(name):
            text = path.read_text(encoding="utf-8")
            module = _Module(path, self._root, text)
            if module.evaluates({name, SCORER} & module._functions.keys()):
                return True
        return False

    def _files_of(self, name: str) -> Iterator[Path]:
        for node in self._imports:
            if name in {each.asname or each.name for each in node.names}:
                words = (node.module or "").split(".")
                if node.level:
                    folder = self._path.parents[node.level - 1]
                elif words[0] == PACKAGE:
                    folder, words = self._root, words[1:]
                else:
                    continue
                file = folder.joinpath(*filter(None, words))
                yield from (each for each in (file.with_suffix(".py"), file / "__init__.py") if each.is_file())


def _last(node: ast.expr) -> str:
    """`sympy.parse_expr` -> `parse_expr`"""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _texts(nodes: list[ast.expr]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
