"""Whether the methods of a user's class, parsed and never run, can be called as a run calls them."""

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple


class Method(NamedTuple):
    """`given` are the positional arguments of each call; `more`: further ones are passed by name."""

    name: str
    given: tuple[str, ...]
    form: str
    is_async: bool = False
    more: bool = False


RUN = Method("run", ("episode", "row"), "async def run(self, episode, row)", is_async=True)
ROWS = Method("rows", ("split",), "def rows(self, split)")
REWARD = Method("reward", ("prompt", "completion"), "def reward(self, prompt, completion, **row)", more=True)
CALL = Method("__call__", ("prompt", "completion"), "def __call__(self, prompt, completion, **row)", more=True)
FUNCTION = Method("", ("prompt", "completion"), "def reward(prompt, completion, **row)", more=True)

RESET = Method("reset", (), "def reset(self, seed)", more=True)
STEP = Method("step", ("action",), "def step(self, action)")
"""Of a text environment, which a task may be instead of rows."""
DRAW = Method("draw", ("rows", "count", "random"), "def draw(self, rows, count, random)")
ADMITS = Method("admits", ("group",), "def admits(self, group)")
FOLLOWING = (
    Method("observe", ("group",), "def observe(self, group)"),
    Method("metrics", (), "def metrics(self)"),
    Method("state", (), "def state(self)"),
    Method("resume", ("state",), "def resume(self, state)"),
)

REQUIRED_METHODS = {"workflow": RUN, "task": ROWS, "reward": CALL, "sampler": DRAW, "gate": ADMITS}
"""Section -> required method of a class that its `name` names."""
OPTIONAL_METHODS = {"sampler": FOLLOWING, "gate": FOLLOWING}
"""Likewise, methods that are called where there are any."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def method_problems(
    kind: str, name: str, definition: Function | ast.ClassDef, rewards: bool, missing: Collection[str] = ()
) -> Iterator[str]:
    """Why the definition cannot be used; nothing if the source does not tell. `rewards`: a task's reward is called.
    `missing`: its parameters that have no value."""
    if kind == "task" and isinstance(definition, ast.ClassDef) and _is_played(definition):
        yield from _method(name, definition, STEP, is_required=True)
        yield from _seeded(name, definition)
    elif isinstance(definition, ast.ClassDef):
        problems = list(_method(name, definition, REQUIRED_METHODS[kind], is_required=True))
        if problems and kind == "task" and {STEP.name, ROWS.name} & _methods(definition) == {STEP.name}:
            problems = list(_method(name, definition, RESET, is_required=True))
        yield from problems
        for method in OPTIONAL_METHODS.get(kind, ()):
            yield from _method(name, definition, method, is_required=False)
        if kind == "task" and rewards:
            yield from _method(name, definition, REWARD, is_required=False)
    elif kind == "reward" and not definition.decorator_list:
        yield from _arguments(name, definition, FUNCTION, is_bound=False)
    elif kind != "reward" and not definition.decorator_list and (missing or not _returns_object(definition)):
        yield f"{name} is a function (line {definition.lineno}); write a class with `{REQUIRED_METHODS[kind].form}`"


def _returns_object(function: Function) -> bool:
    """Whether calling it may give one, as calling a class does."""
    values = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return isinstance(function, ast.FunctionDef) and any(value is not None for value in values)


def _is_played(definition: ast.ClassDef) -> bool:
    return {RESET.name, ROWS.name} & _methods(definition) == {RESET.name}


def _methods(definition: ast.ClassDef) -> set[str]:
    return {node.name for node in definition.body if isinstance(node, Function)}


def _seeded(name: str, definition: ast.ClassDef) -> Iterator[str]:
    """Whether `reset` can be called with the seed by name."""
    (*_, reset) = (node for node in definition.body if isinstance(node, Function) and node.name == RESET.name)
    takes = [each.arg for each in (*reset.args.args, *reset.args.kwonlyargs)]
    if "seed" not in takes and reset.args.kwarg is None and not reset.decorator_list:
        call = f"takes ({ast.unparse(reset.args)}) and is called as reset(seed=17)"
        yield f"reset of {name} (line {reset.lineno}) {call}; write `{RESET.form}`"


def _method(name: str, definition: ast.ClassDef, method: Method, is_required: bool) -> Iterator[str]:
    own = [node for node in definition.body if isinstance(node, Function) and node.name == method.name]
    if definition.decorator_list:
        return
    if not own:
        if is_required and not definition.bases and not definition.keywords and _declares_all(definition, method):
            yield f"{name} has no method {method.name}; write `{method.form}`"
        return
    decorators = {node.id if isinstance(node, ast.Name) else "" for node in own[-1].decorator_list}
    if decorators - {"staticmethod", "classmethod"}:
        return
    if method.is_async and not isinstance(own[-1], ast.AsyncFunctionDef):
        yield f"{method.name} of {name} (line {own[-1].lineno}) is not async; write `{method.form}`"
    yield from _arguments(name, own[-1], method, is_bound="staticmethod" not in decorators)


def _declares_all(definition: ast.ClassDef, method: Method) -> bool:
    """Whether the body of the class cannot define the method in another way."""
    plain = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Expr, ast.Pass)
    for node in definition.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if isinstance(node, Function) and node.name == "__getattr__":
            return False
        if targets and any(not isinstance(each, ast.Name) or each.id == method.name for each in targets):
            return False
        if not targets and not isinstance(node, plain):
            return False
    return True


def _arguments(name: str, function: Function, method: Method, is_bound: bool) -> Iterator[str]:
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    taken = positional[1:] if is_bound else positional
    by_name = [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    needed = max(0, len(taken) - len(arguments.defaults))
    too_few = len(taken) < len(method.given) and arguments.vararg is None
    too_many = not method.more and (needed > len(method.given) or bool(by_name))
    if too_few or too_many or (is_bound and not positional and arguments.vararg is None):
        of = f"{method.name} of {name}" if method.name else name
        takes = ast.unparse(arguments)
        call = f"{method.name or name.rpartition(':')[2].rpartition('.')[2]}({', '.join(method.given)})"
        yield f"{of} (line {function.lineno}) takes ({takes}) and is called as {call}; write `{method.form}`"
