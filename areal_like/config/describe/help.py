"""Help of keys and sections, from the string literals below their fields; the text of `--help=KEY`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from areal_like.config.built_in import BUILT_IN
from areal_like.config.checks.built_in_code import described_losses
from areal_like.config.checks.values import expectation
from areal_like.config.describe.rules import rule_text
from areal_like.config.describe.yaml_text import scalar_text
from areal_like.config.engines import engine_names
from areal_like.config.known_datasets import KNOWN_DATASETS
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.redact import SECRET, redact
from areal_like.config.schema import Key, Schema, Section
from areal_like.config.suggest import did_you_mean

NUMBER = re.compile(r"\.\d+(?=\.)|\[\](?=\.)")
"""Of an item in a path: `a.list.0.key` and `a.list[].key` are `a.list.key`."""
ENGINE_NAMES, LOSS_ARGUMENTS, KNOWN_NAMES = "{engines}", "{arguments of losses}", "{known_datasets}"
"""Stand in the help of a key for the engines, the arguments of each built-in loss, and the known datasets."""
BUILT_IN_NAMES = {
    "{tasks}": "task",
    "{workflows}": "workflow",
    "{rewards}": "reward",
    "{losses}": "actor.loss",
    "{gates}": "gate",
}
"""Likewise for what is built in -> its name in `BUILT_IN`."""


@cache
def _classes_of(path: str) -> dict[str, dict[str, str]]:
    """Class name -> field name -> help, for one source file."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    classes: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        texts = classes.setdefault(node.name, {})
        for statement, follower in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(follower, ast.Expr)
                and isinstance(follower.value, ast.Constant)
                and isinstance(follower.value.value, str)
            ):
                texts[statement.target.id] = " ".join(follower.value.value.split())
    return classes


@cache
def help_of(cls: type) -> dict[str, str]:
    """Field name -> help, inherited ones included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is object:
            continue
        try:
            path = inspect.getsourcefile(base)
        except TypeError:
            path = None
        if path is not None and Path(path).is_file():
            texts.update(_classes_of(path).get(base.__name__, {}))
    return texts


def meaning(entry: Key | Section) -> str:
    """The help of a key or section, and what its rules say."""
    text = help_of(entry.owner).get(entry.name, "") if entry.owner is not None else ""
    text = text.replace(ENGINE_NAMES, _listed(engine_names()))
    for place, kind in BUILT_IN_NAMES.items():
        text = text.replace(place, _listed(BUILT_IN[kind]))
    text = text.replace(KNOWN_NAMES, _listed(KNOWN_DATASETS))
    if LOSS_ARGUMENTS in text:
        text = text.replace(LOSS_ARGUMENTS, described_losses())
    return " ".join([text, *(rule_text(rule, entry) for rule in entry.constraints.rules)])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def type_text(key: Key) -> str:
    choices = key.choices
    return expectation(key.kind, key.constraints) if choices or key.kind.name == "union" else _typed(key)


def _typed(key: Key) -> str:
    text = expectation(key.kind, key.constraints)
    if key.kind.name in ("list", "map") and key.kind.item is not None and key.kind.item.name != "any":
        text = text.replace("a list", f"a list of {key.kind.item}").replace(
            "a mapping", f"a mapping to {key.kind.item}"
        )
    return text


def default_text(key: Key) -> str:
    if key.constraints.required:
        return "(required)"
    shown = redact(key.name, key.default, marked=key.constraints.secret)
    return SECRET if shown == SECRET else scalar_text(shown)


def help_text(path: str, schemas: list[Schema], bold: Any = str, width: int = 100) -> str:
    """The help of one section (its keys, and the sections below it) or one key; raises ConfigError."""
    path = ALIASES.get(path, path).strip(".")
    of_item = NUMBER.sub("", path)
    for schema in schemas:
        items = next(
            (key.path for key in schema.keys.values() if "[]" in key.path and key.path.replace("[]", "") == of_item),
            None,
        )
        if items is not None:
            return "\n".join(_key_lines(schema.keys[items], items, bold, width))
        if f"{path}[]" in schema.sections:
            return "\n".join(
                [*_key_lines(schema.keys[path], path, bold, width), "", *_item_lines(schema, path, bold, width)]
            )
        if path in schema.keys:
            return "\n".join(_key_lines(schema.keys[path], path, bold, width))
        if path in schema.sections:
            return "\n".join(_section_lines(schema, path, bold, width))
    names = [name for schema in schemas for name in schema.names()]
    raise ConfigError([Problem(path, f"no such section or key{did_you_mean(path, names)}", "--help")])


def _section_lines(schema: Schema, path: str, bold: Any, width: int) -> Iterator[str]:
    section = schema.sections[path]
    null = ", null until something below it is set" if section.default_null else ""
    yield bold(f"{path or 'experiment'}") + f"  ({section.cls.__name__}{null})"
    text = meaning(section) or " ".join((section.cls.__doc__ or "").split())
    yield from _wrapped(text, width, "  ")
    prefix = f"{path}." if path else ""
    inner = [key for name, key in schema.keys.items() if name.startswith(prefix) and "." not in name[len(prefix) :]]
    for key in inner:
        yield ""
        yield from _key_lines(key, key.path, bold, width)
    below = [
        s
        for name, s in schema.sections.items()
        if name and name.startswith(prefix) and "." not in name[len(prefix) :] and "[]" not in name
    ]
    if below:
        yield ""
        yield "Sections below it:"
        name_width = max(len(s.path) for s in below)
        for inner_section in below:
            first = meaning(inner_section) or " ".join((inner_section.cls.__doc__ or "").split())
            yield f"  {inner_section.path:<{name_width}}  {_short(first, width - name_width - 4)}"


def _item_lines(schema: Schema, path: str, bold: Any, width: int) -> Iterator[str]:
    yield "Each item has:"
    for name, key in schema.keys.items():
        if name.startswith(f"{path}[]."):
            yield ""
            yield from _key_lines(key, name, bold, width)


def _key_lines(key: Key, shown: str, bold: Any, width: int) -> Iterator[str]:
    yield f"{bold(shown)} = {default_text(key)}"
    yield from _wrapped(type_text(key), width, "    ")
    yield from _wrapped(meaning(key), width, "    ")
    short = [alias for alias, real in ALIASES.items() if real == key.path]
    if short:
        yield f"    short: {', '.join(short)}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width=width, initial_indent=indent, subsequent_indent=indent) if text else []


def _short(text: str, width: int) -> str:
    sentence = text.split(". ")[0].rstrip(".")
    return sentence if len(sentence) <= width else sentence[: max(width - 3, 10)].rstrip() + "..."
