"""Reads one layer (file, group option or override): checked values by dotted path, with file and line."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from areal_like.config.checks.values import InvalidValue, check_key, expectation, is_interpolation, show_value
from areal_like.config.dialects.areal import FOREIGN_SECTIONS
from areal_like.config.interpolation import syntax_error
from areal_like.config.names import ALIASES
from areal_like.config.problems import MISSING_VALUE, Problem
from areal_like.config.redact import is_secret_name
from areal_like.config.schema import Key, Kind, Schema, Section, ancestors, is_list_of_sections
from areal_like.config.sources.yaml_file import YamlNode
from areal_like.config.suggest import did_you_mean, nearest

MAX_HINTS = 40


@dataclass(frozen=True)
class Leaf:
    """One value that a layer sets. `written` is the key as written (possibly a short name)."""

    path: str
    value: Any
    where: str
    written: str


@dataclass
class LayerContent:
    """Values and problems of a layer."""

    leaves: list[Leaf] = field(default_factory=list)
    foreign: list[Leaf] = field(default_factory=list)
    """Values in sections of other frameworks, which nothing reads."""
    problems: list[Problem] = field(default_factory=list)


class LayerReader:
    """Reads one layer. `place` maps a line number to its text in messages; `package` is the path of the layer."""

    def __init__(self, schema: Schema, place: Callable[[int], str], package: str = "") -> None:
        self.schema, self.place, self.package = schema, place, package
        self.result = LayerContent()
        self.names = schema.names()
        self.hinted = 0

    def read(self, node: YamlNode) -> LayerContent:
        self._walk(self.package, node)
        self._refuse_contradictions()
        return self.result

    def read_at(self, path: str, node: YamlNode) -> LayerContent:
        """Reads the value at one path, for an override."""
        self._walk(path, node)
        return self.result

    def _unknown(self, path: str) -> str:
        """A hint for an unknown key; a limited number, as hints are slow and a file may have many unknown keys."""
        self.hinted += 1
        if self.hinted > MAX_HINTS:
            return ""
        above = self.schema.list_above(path)
        if above is None:
            return did_you_mean(path, self.names)
        index, _, name = path.removeprefix(f"{above}.").partition(".")
        names = [each.removeprefix(f"{above}[].") for each in self.names if each.startswith(f"{above}[].")]
        guess = nearest(name, names)
        return f"; did you mean {above}.{index}.{guess[0]}?" if guess else f"; there are: {', '.join(names)}"

    def _problem(self, key: str, line: int, message: str) -> None:
        self.result.problems.append(Problem(key, message, self.place(line)))

    def _leaf(self, path: str, value: Any, line: int, written: str) -> None:
        self.result.leaves.append(Leaf(path, value, self.place(line), written))

    def _walk(self, path: str, node: YamlNode, written: str | None = None) -> None:
        written = written if written is not None else path
        if path == "" or path in self.schema.sections:
            self._section(path, node, written)
        elif path in self.schema.keys:
            self._key(self.schema.keys[path], node, written)
        elif (declared := self.schema.declared_path(path)) in self.schema.keys:
            self._key(replace(self.schema.keys[declared], path=path), node, written)
        elif self.schema.map_above(path) is not None:
            self._entry(path, node, written)
        elif declared in self.schema.sections:
            below = f"{written}.{self._first(declared, node)}=..."
            self._problem(written, node.line, f"is a section; set keys below it: {below}")
        elif (item := self.schema.item_at(path)) is not None:
            keys = f"{written}.{self._first(item, node)}=..."
            self._problem(written, node.line, f"is an item of a list; set its keys ({keys}), or the whole list")
        elif any(above in FOREIGN_SECTIONS for above in (path, *ancestors(path))):
            self.result.foreign.append(Leaf(path, node.plain(), self.place(node.line), written))
        elif ALIASES.get(path) in self.schema.keys:
            self._walk(ALIASES[path], node, written)
        else:
            count = len(node.value) if isinstance(node.value, dict) else 0
            unread = f" ({count} keys below it were not read)" if count > 1 else ""
            self._problem(written, node.line, f"no such key{self._unknown(path)}{unread}")

    def _first(self, section: str, node: YamlNode) -> str:
        """The key of a section that a value sets first, else its own first."""
        names = [each.name for each in self.schema.children(section)]
        given = node.value if isinstance(node.value, dict) else {}
        return next((name for name in given if name in names), names[0])

    def _section(self, path: str, node: YamlNode, written: str) -> None:
        section = self.schema.sections[path]
        if isinstance(node.value, dict):
            if not node.value and section.optional:
                self._leaf(path, {}, node.line, written)
            for name, child in node.value.items():
                below = f"{path}.{name}" if path else name
                if not name or "." in name:
                    self._problem(
                        below,
                        node.line if child.line is None else child.line,
                        "a key in a file cannot contain dots; nest it: `a:` and below it `b:`",
                    )
                    continue
                self._walk(below, child)
        elif is_interpolation(node.value):
            self._interpolated(path, node, written)
        elif section.optional and node.value in (None, "None"):
            self._leaf(path, None, node.line, written)
        else:
            holds_secret = any(
                k.constraints.secret for name, k in self.schema.keys.items() if name.startswith(path + ".")
            )
            what = "null" if node.value is None else "a single value" if holds_secret else show_value(node.plain())
            self._problem(written, node.line, f"is a section and cannot be {what}; set keys below it, or leave it out")

    def _interpolated(self, path: str, node: YamlNode, written: str) -> None:
        error = syntax_error(node.value)
        if error:
            self._problem(written, node.line, error)
        else:
            self._leaf(path, node.value, node.line, written)

    def _key(self, key: Key, node: YamlNode, written: str) -> None:
        if key.kind.name == "map" and isinstance(node.value, dict):
            if not node.value:
                self._leaf(key.path, {}, node.line, written)
            for name, child in node.value.items():
                self._entry(f"{key.path}.{name}", child, f"{written}.{name}")
            return
        if is_list_of_sections(key.kind) and isinstance(node.value, list):
            self._list_of_sections(key, node, written)
            return
        self._value(key, node, written)

    def _value(self, key: Key, node: YamlNode, written: str) -> None:
        """One value or reference."""
        hidden = key.constraints.secret or is_secret_name(key.name)
        errors = [error for text in _interpolations(node.plain()) if (error := syntax_error(text))]
        if errors:
            self._problem(
                written, node.line, "is not an interpolation (a secret, so not shown)" if hidden else errors[0]
            )
            return
        try:
            self._leaf(key.path, check_key(key, node.plain()), node.line, written)
        except InvalidValue as refusal:
            mismatch = f"is invalid; expected {expectation(key.kind, key.constraints)} (a secret, so not shown)"
            self._problem(written, node.line, mismatch if hidden else str(refusal))

    def _entry(self, path: str, node: YamlNode, written: str) -> None:
        """An entry of a map: any name is allowed."""
        key, name = self.schema.map_above(path), path.rpartition(".")[2]
        assert key is not None
        if key.kind.item is not None and key.kind.item.name != "any" and "." in path.removeprefix(f"{key.path}."):
            self._problem(written, node.line, f"{key.path} holds single values, not mappings")
            return
        if not name or "." in name:
            self._problem(written, node.line, "a key in a file cannot contain dots; nest it: `a:` and below it `b:`")
            return
        if isinstance(node.value, dict) and (key.kind.item is None or key.kind.item.name == "any"):
            if not node.value:
                self._leaf(path, {}, node.line, written)
            for child_name, child in node.value.items():
                self._entry(f"{path}.{child_name}", child, f"{written}.{child_name}")
            return
        kind = key.kind.item or Kind("any", optional=True)
        self._value(replace(key, path=path, kind=kind, name=name), node, written)

    def _list_of_sections(self, key: Key, node: YamlNode, written: str) -> None:
        num_problems = len(self.result.problems)
        items = self._items(key, node, written)
        if len(self.result.problems) == num_problems:
            self._leaf(key.path, items, node.line, written)

    def _items(self, key: Key, node: YamlNode, written: str) -> list[dict[str, Any]]:
        return [self._item(f"{key.path}[]", item, f"{written}.{index}") for index, item in enumerate(node.value)]

    def _item(self, path: str, item: YamlNode, place: str) -> dict[str, Any]:
        """One item of a list of sections, or a section in it, checked. `place` is its path with the item's index."""
        if not isinstance(item.value, dict):
            self._problem(place, item.line, f"{show_value(item.plain())} is not a mapping; write `- name: value` lines")
            return {}
        inner = {each.name: each for each in self.schema.children(path)}
        checked: dict[str, Any] = {}
        for name, child in item.value.items():
            if name not in inner:
                guess = nearest(name, list(inner))
                hint = f"; did you mean {place}.{guess[0]}?" if guess else f"; there are: {', '.join(inner)}"
                self._problem(f"{place}.{name}", child.line, f"no such key{hint}")
                continue
            try:
                checked[name] = self._item_value(inner[name], child, f"{place}.{name}")
            except InvalidValue as refusal:
                self._problem(f"{place}.{name}", child.line, str(refusal))
        for name, key in inner.items():
            if key.constraints.required and item.value.get(name, YamlNode(None, 0)).value in (None, ""):
                assert isinstance(key, Key)
                expected = expectation(key.kind, key.constraints)
                self._problem(f"{place}.{name}", item.line, f"{MISSING_VALUE}: {expected}")
        return checked

    def _item_value(self, entry: Key | Section, node: YamlNode, place: str) -> Any:
        """A value in an item of a list; raises InvalidValue."""
        if isinstance(entry, Section):
            is_null = entry.optional and node.value in (None, "None")
            return None if is_null else self._item(entry.path, node, place)
        if is_list_of_sections(entry.kind) and isinstance(node.value, list):
            return self._items(entry, node, place)
        return check_key(entry, node.plain())

    def _refuse_contradictions(self) -> None:
        """A short name and its full key in one layer are ambiguous."""
        by_path: dict[str, Leaf] = {}
        for leaf in self.result.leaves:
            first = by_path.setdefault(leaf.path, leaf)
            if first is not leaf and first.written != leaf.written:
                message = f"{first.written} and {leaf.written} are the same key; keep one"
                self.result.problems.append(Problem(leaf.path, message, leaf.where))


def _interpolations(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for item in value for text in _interpolations(item)]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _interpolations(item)]
    return [value] if is_interpolation(value) else []
