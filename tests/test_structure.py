"""The rules of the layout: imports go down and never in circles, a class name means one class, an engine is
named in its rooms only.

Each rule has a list of today's exceptions. It may only shrink: an exception that is no longer needed fails as well.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from areal_like.config.sections.engines.keys import SHIPPED

pytestmark = pytest.mark.xdist_group("sources")

ROOT = Path(__file__).resolve().parents[1]
# From the top down; rooms of one row do not import each other.
ROWS = (
    ("launcher",),
    ("areal_like.api",),
    ("areal_like.rollout",),
    ("areal_like.serving",),
    ("areal_like.training",),
    ("areal_like.observe", "areal_like.weights"),
    ("areal_like.data", "areal_like.discovery"),
    ("areal_like.process",),
    ("areal_like.config",),
    ("areal_like.algorithms", "areal_like.models"),
)
UPWARD: set[tuple[str, str]] = set()
CIRCLES: set[tuple[str, ...]] = set()
ENGINES = {keys.name: keys.title for keys in SHIPPED}
NAMES_OF_ENGINES = "|".join({word for name, title in ENGINES.items() for word in (name, name.upper(), title)})
ENGINE = re.compile(rf"(?<![a-zA-Z])({NAMES_OF_ENGINES})(?![a-zA-Z])")
OWN_ROOMS = (*(f"areal_like/serving/engines/{engine}/" for engine in ENGINES), "areal_like/config/sections/engines/")
NAMING_ENGINES = {"launcher/commands/chat.py"}
"""It generates with the embedded engine, in its own process."""
HEAVY = {"torch", "transformers"}
HEAVY_PACKAGES = (
    "areal_like.algorithms",
    "areal_like.training",
    "areal_like.weights",
    "areal_like.serving.engines.embedded",
    "areal_like.serving.reward_model",
)
# Other modules that load torch. Those of vLLM and SGLang run inside the engines.
HEAVY_MODULES = {
    "areal_like.models.widen_heads",
    "areal_like.serving.engines.external.plugin.arriving_tensors",
    "areal_like.serving.engines.external.plugin.exchange",
    "areal_like.serving.engines.external.plugin.staging_room",
    "areal_like.serving.engines.external.plugin.worker_place",
    "areal_like.serving.engines.sglang.plugin.launch",
    "areal_like.serving.engines.sglang.plugin.worker",
    "areal_like.serving.engines.vllm.plugin.packed_layers",
    "areal_like.serving.engines.vllm.plugin.prompt_logits",
    "areal_like.serving.engines.vllm.plugin.weight_view",
    "areal_like.serving.engines.vllm.plugin.worker",
}
LONGEST = 350


@cache
def sources() -> dict[str, Path]:
    files = [*(ROOT / "areal_like").rglob("*.py"), *(ROOT / "launcher").rglob("*.py")]
    return {module_name(file): file for file in sorted(files)}


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


class Module(NamedTuple):
    """What the rules ask about a module; its tree is not kept."""

    imports: set[str]
    """Modules of the product, also inside functions and for types alone."""
    on_import: set[str]
    """Names in import statements outside of functions and not for types alone, with the packages above them."""
    anywhere: set[str]
    """The same of all import statements."""
    classes: list[str]


@cache
def read(module: str) -> Module:
    body = ast.parse(sources()[module].read_text(encoding="utf-8")).body
    everything = list(statements(body))
    return Module(
        set(imports(module, everything)),
        imported_names(module, statements(body, only_on_import=True)),
        imported_names(module, everything),
        [node.name for node in everything if isinstance(node, ast.ClassDef)],
    )


def statements(body: Iterable[ast.AST], only_on_import: bool = False) -> Iterator[ast.AST]:
    """All of them, also inner ones; or those outside of functions and not for types alone."""
    for node in body:
        if only_on_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if only_on_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, field, ()), only_on_import)


def imports(module: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in sources())
        elif isinstance(node, ast.ImportFrom) and (origin := origin_of(module, node)):
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                if inner in sources():
                    yield inner
                elif origin in sources():
                    yield origin
                # The packages on the way are run as well.
                yield from (package for package in packages(origin) if not module.startswith(package))


def origin_of(module: str, node: ast.ImportFrom) -> str:
    """The module, with the package that dots before it stand for."""
    if not node.level:
        return node.module or ""
    is_package = sources()[module].name == "__init__.py"
    parts = module.split(".")
    package = parts[: len(parts) - node.level + is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    for end in range(1, len(parts)):
        if ".".join(parts[:end]) in sources():
            yield ".".join(parts[:end])


def row(module: str) -> int | None:
    for number, rooms in enumerate(ROWS):
        if any(module == room or module.startswith(room + ".") for room in rooms):
            return number
    return None


def room(module: str) -> str:
    number = row(module)
    assert number is not None
    return next(room for room in ROWS[number] if module == room or module.startswith(room + "."))


def compare(rule: str, occurring: set[Any], excepted: set[Any]) -> None:
    assert not occurring - excepted, f"{rule}: {sorted(occurring - excepted)}"
    assert not excepted - occurring, f"no longer exceptions, take them off the list: {sorted(excepted - occurring)}"


def test_imports_go_down():
    upward = set()
    for module in sources():
        mine = row(module)
        for other in read(module).imports:
            theirs = row(other)
            if mine is None or theirs is None or room(module) == room(other):
                continue
            if theirs <= mine:
                upward.add((module, other))
    compare("imports that go up or sideways", upward, UPWARD)


def imported_names(module: str, nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (origin := origin_of(module, node)):
            names |= {f"{origin}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    return {".".join(each[:end]) for each in parts for end in range(1, len(each) + 1)}


def test_few_packages_alone_import_torch():
    """No other module loads it when it is imported, not even through other modules."""
    on_import = {module: read(module).on_import for module in sources()}
    loading = {module for module, names in on_import.items() if names & HEAVY}
    while more := {module for module, names in on_import.items() if names & loading} - loading:
        loading |= more
    importing = {module for module in sources() if read(module).anywhere & HEAVY}
    outside = {module for module in loading | importing if not module.startswith(HEAVY_PACKAGES)}
    compare("modules that load torch or transformers", outside, HEAVY_MODULES)


def circles() -> list[list[str]]:
    """Sets of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in read(module).imports:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            position = stack.index(module)
            if len(stack) - position > 1:
                found.append(sorted(stack[position:]))
            del stack[position:]

    for module in sources():
        if module not in index:
            visit(module)
    return found


def test_no_modules_import_each_other():
    compare("modules that import each other", {tuple(modules) for modules in circles()}, CIRCLES)


def test_a_class_name_means_one_class():
    homes: dict[str, list[str]] = {}
    for module in sources():
        for name in read(module).classes:
            homes.setdefault(name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def code_words(text: str) -> Iterator[str]:
    """Names and strings of a module; docstrings and comments are no code."""
    docstrings = set()
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Also the strings below fields, which are their help texts.
            docstrings |= {id(item.value) for item in body if isinstance(item, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_an_engine_is_named_in_its_own_rooms():
    files = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in sources().values()}
    naming = {
        name
        for name, text in files.items()
        if not name.startswith(OWN_ROOMS) and ENGINE.search(text) and any(map(ENGINE.search, code_words(text)))
    }
    compare("files that name an engine", naming, NAMING_ENGINES)


def test_no_file_is_too_long_to_be_read_at_once():
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sources().values()}
    assert {file: length for file, length in lengths.items() if length > LONGEST} == {}
