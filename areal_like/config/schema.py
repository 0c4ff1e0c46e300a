"""The schema: every key that the dataclasses declare, by its dotted path, without Hydra."""

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from areal_like.config.dotted_path import nested, value_at
from areal_like.config.fields import METADATA_KEY, Constraints, KeyRule

NO_CONSTRAINTS = Constraints()
ITEM_KEY = re.compile(r"(?P<list>.+?)\.\d+\..+")
SCALARS = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True)
class Kind:
    """The type of a key."""

    name: str
    """bool, int, float, str, list, map, section, union or any"""
    optional: bool = False
    auto: bool = False
    item: "Kind | None" = None
    variants: tuple["Kind", ...] = ()
    choices: tuple[Any, ...] | None = None
    cls: type | None = None

    def __str__(self) -> str:
        if self.name in ("list", "map"):
            text = {"list": "list", "map": "map"}[self.name] + (f" of {self.item}" if self.item else "")
        elif self.name == "union":
            text = " | ".join(str(variant) for variant in self.variants)
        elif self.name == "section":
            text = self.cls.__name__ if self.cls else "section"
        else:
            text = self.name
        return text + (" | auto" if self.auto else "") + (" | null" if self.optional else "")


@dataclass(frozen=True)
class Key:
    """One leaf of the tree. `path` of a key inside a list of sections reads `section.list[].key`."""

    path: str
    kind: Kind
    default: Any
    constraints: Constraints
    owner: type
    name: str

    @property
    def choices(self) -> tuple[Any, ...] | None:
        return self.constraints.choices if self.constraints.choices is not None else self.kind.choices


@dataclass(frozen=True)
class Section:
    """An inner node of the tree; `optional` ones are null until something below them is set."""

    path: str
    cls: type
    optional: bool
    owner: type | None
    name: str
    default_null: bool = False
    constraints: Constraints = NO_CONSTRAINTS


class SchemaError(TypeError):
    """A dataclass that cannot be a schema: a bug in code, not in a configuration."""


class Schema:
    """The keys and sections of one experiment class."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.keys: dict[str, Key] = {}
        self.sections: dict[str, Section] = {"": Section("", cls, False, None, "")}
        self._walk("", cls, _own_defaults(cls))

    @staticmethod
    def of(cls: type) -> "Schema":
        """The schema of a class, cached."""
        if cls not in _schemas:
            _schemas[cls] = Schema(cls)
        return _schemas[cls]

    def _walk(self, prefix: str, cls: type, defaults: dict[str, Any]) -> None:
        for name, (kind, constraints) in declarations(cls).items():
            path = f"{prefix}{name}"
            default = defaults.get(name)
            if kind.name == "section":
                assert kind.cls is not None
                null = default is None
                self.sections[path] = Section(path, kind.cls, kind.optional, cls, name, null, constraints)
                self._walk(path + ".", kind.cls, _own_defaults(kind.cls) if default is None else default)
                continue
            self.keys[path] = Key(path, kind, default, constraints, cls, name)
            if is_list_of_sections(kind):
                assert kind.item is not None and kind.item.cls is not None
                self.sections[path + "[]"] = Section(path + "[]", kind.item.cls, False, cls, name)
                self._walk(path + "[].", kind.item.cls, _own_defaults(kind.item.cls))

    def defaults(self, expanded: Iterable[str] = (), below: str = "") -> dict[str, Any]:
        """The tree of defaults, or its part `below` a section. Optional sections are null, except the `expanded` ones
        and those above them."""
        opened, start = set(expanded), f"{below}." if below else ""
        tree: dict[str, Any] = {}
        for path, section in self.sections.items():
            if path and path.startswith(start) and "[]" not in path:
                parent, _, name = path.removeprefix(start).rpartition(".")
                node = value_at(tree, parent)
                if isinstance(node, dict):
                    node[name] = None if section.default_null and path not in opened else {}
        for path, key in self.keys.items():
            if path.startswith(start) and "[]" not in path:
                parent, _, name = path.removeprefix(start).rpartition(".")
                node = value_at(tree, parent)
                if isinstance(node, dict):
                    node[name] = deepcopy(key.default)
        return tree

    def maps(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The part of the defaults to which a layer adds single entries: the entries of maps."""
        found = ((path, value_at(defaults, path)) for path, key in self.keys.items() if accepts_map(key.kind))
        return nested((path, value) for path, value in found if isinstance(value, dict) and value)

    def complete(self, tree: dict[str, Any], defaults: dict[str, Any], below: str = "") -> dict[str, Any]:
        """The values of a tree, and the defaults of all else."""
        complete = {**defaults, **tree}
        for name, value in tree.items():
            if isinstance(value, dict) and f"{below}{name}" in self.sections:
                complete[name] = self.complete(value, defaults.get(name) or {}, f"{below}{name}.")
        return complete

    def section_defaults(self, path: str) -> dict[str, Any]:
        """The defaults below one section."""
        return self.defaults(below=path)

    def own_default(self, path: str) -> Any:
        """The default in the class of a key, without the overrides of the section above."""
        key = self.keys[path]
        return _cached_defaults(key.owner).get(key.name)

    def map_above(self, path: str) -> Key | None:
        """The map (or untyped) key that contains this path, if any: inside it all names are allowed."""
        for above in ancestors(self.declared_path(path)):
            key = self.keys.get(above)
            if key is not None:
                return key if accepts_map(key.kind) else None
        return None

    def list_above(self, path: str) -> str | None:
        """The list of sections that contains the key of an item: `a.list` of `a.list.0.key`."""
        match = ITEM_KEY.fullmatch(path)
        return match["list"] if match and f"{match['list']}[]" in self.sections else None

    def item_at(self, path: str) -> str | None:
        """The section of a whole item: `a.list[]` of `a.list.0`."""
        above, _, index = path.rpartition(".")
        return f"{above}[]" if index.isdecimal() and f"{above}[]" in self.sections else None

    def declared_path(self, path: str) -> str:
        """The path of a key, `a.list[].key` where it is one of an item, `a.list.0.key`."""
        above = self.list_above(path)
        return path if above is None else f"{above}[].{path.removeprefix(above).lstrip('.').partition('.')[2]}"

    def optional_above(self, path: str) -> Iterator[str]:
        """The optional sections that contain this path, or are at it."""
        for above in (*ancestors(path), path):
            section = self.sections.get(above)
            if section is not None and section.default_null:
                yield above

    @cached_property
    def rules(self) -> tuple[tuple["Key | Section", KeyRule], ...]:
        """The rules that keys and sections declare, in the order of the tree."""
        entries: tuple[Key | Section, ...] = (*self.keys.values(), *self.sections.values())
        return tuple((entry, rule) for entry in entries for rule in entry.constraints.rules)

    def children(self, path: str) -> Iterator["Key | Section"]:
        """The keys and sections directly below a section, in the order of its class. Those of the items of a list are
        below `list[]`."""
        for name in declarations(self.sections[path].cls):
            below = f"{path}.{name}" if path else name
            yield self.keys[below] if below in self.keys else self.sections[below]

    def names(self) -> list[str]:
        return [*self.keys, *(path for path in self.sections if path)]


_schemas: dict[type, Schema] = {}


def accepts_map(kind: Kind) -> bool:
    return kind.name in ("map", "any") or any(accepts_map(variant) for variant in kind.variants)


def is_list_of_sections(kind: Kind) -> bool:
    return kind.name == "list" and kind.item is not None and kind.item.name == "section"


def ancestors(path: str) -> list[str]:
    """`a.b.c` -> `a`, `a.b`"""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


@cache
def declarations(cls: type) -> dict[str, tuple[Kind, Constraints]]:
    hints = _hints(cls)
    declared = {}
    for field in dataclasses.fields(cls):
        constraints = field.metadata.get(METADATA_KEY)
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if constraints is None:
            constraints = Constraints(required=required or field.default == "???")
        declared[field.name] = (kind_of(hints[field.name], f"{cls.__name__}.{field.name}"), constraints)
    return declared


def _hints(cls: type) -> dict[str, Any]:
    """Annotations of a dataclass. Those of shipped classes are types; a user's module may have strings."""
    if not any(isinstance(field.type, str) for field in dataclasses.fields(cls)):
        return {field.name: field.type for field in dataclasses.fields(cls)}
    return typing.get_type_hints(cls)


def kind_of(annotation: Any, name: str) -> Kind:
    """The kind of an annotation; raises SchemaError for unsupported ones."""
    if annotation is Any:
        return Kind("any", optional=True)
    if annotation in SCALARS:
        return Kind(SCALARS[annotation])
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return Kind("section", cls=annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        values = tuple(member.value for member in annotation)
        return Kind(SCALARS.get(type(values[0]), "any") if values else "any", choices=values)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return Kind(SCALARS[type(arguments[0])], choices=arguments)
    if origin in (types.UnionType, typing.Union):
        return _union(arguments, name)
    if origin is list or annotation is list:
        return Kind("list", item=kind_of(arguments[0], name) if arguments else Kind("any", optional=True))
    if origin is dict or annotation is dict:
        return Kind("map", item=kind_of(arguments[1], name) if arguments else Kind("any", optional=True))
    raise SchemaError(
        f"{name}: unsupported type {annotation!r}; use bool, int, float, str, list, dict, "
        "a dataclass, or one of them or None"
    )


def _union(arguments: tuple[Any, ...], name: str) -> Kind:
    auto = any(typing.get_origin(a) is typing.Literal and typing.get_args(a) == ("auto",) for a in arguments)
    kinds = [
        kind_of(argument, name)
        for argument in arguments
        if argument is not type(None)
        and not (typing.get_origin(argument) is typing.Literal and typing.get_args(argument) == ("auto",))
    ]
    optional = type(None) in arguments
    if len(kinds) == 1:
        return dataclasses.replace(kinds[0], optional=optional, auto=auto)
    return Kind("union", optional=optional, auto=auto, variants=tuple(kinds))


@cache
def _cached_defaults(cls: type) -> dict[str, Any]:
    return {field.name: _default_of(field) for field in dataclasses.fields(cls)}


def _own_defaults(cls: type) -> dict[str, Any]:
    return deepcopy(_cached_defaults(cls))


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return _plain(field.default) if field.default != "???" else None
    if field.default_factory is dataclasses.MISSING:
        return None
    factory: Any = field.default_factory
    tree = _own_defaults(factory) if dataclasses.is_dataclass(factory) and isinstance(factory, type) else None
    if tree is None:
        return _plain(factory())
    for place, value in field.metadata.get("overrides", {}).items():
        _override(tree, factory, place, value)
    return tree


def _override(tree: dict[str, Any], cls: Any, place: str, value: Any) -> None:
    """Sets a default by `section(cls, a__b=value)`; an empty dict expands an optional section."""
    *above, name = place.split("__")
    node: Any = tree
    for step in above:
        kind, _ = declarations(cls)[step]
        cls = kind.cls
        if node[step] is None:
            node[step] = _own_defaults(cls)
        node = node[step]
    if name not in declarations(cls):
        raise SchemaError(f"section({cls.__name__}, {place}=...): no such key")
    kind, _ = declarations(cls)[name]
    node[name] = _own_defaults(kind.cls) if kind.name == "section" and value == {} and kind.cls else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
