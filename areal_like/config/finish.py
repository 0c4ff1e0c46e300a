"""The last step: references followed, what they lead to checked, required values there, keys in agreement."""

from collections.abc import Sequence
from typing import Any

from areal_like.config.check import Refused, check, check_key, expectation, is_interpolation
from areal_like.config.interpolation import Broken, Resolver
from areal_like.config.leaves import Reader
from areal_like.config.loaded import MISSING, at
from areal_like.config.overrides import node_of
from areal_like.config.problems import MISSING_VALUE, Problem
from areal_like.config.provenance import Replay
from areal_like.config.rules import findings
from areal_like.config.schema import Key, Kind, Schema


def finish(
    schema: Schema, raw: dict[str, Any], replay: Replay, known: Sequence[Problem]
) -> tuple[dict[str, Any], list[Problem]]:
    """The resolved values, and what is wrong with them. Nothing in `raw` is changed."""
    return _Finisher(schema, raw, replay).finish(known)


class _Finisher:
    def __init__(self, schema: Schema, raw: dict[str, Any], replay: Replay) -> None:
        self.schema, self.raw, self.replay = schema, raw, replay
        self.resolver = Resolver(raw, schema.names())
        self.problems: list[Problem] = []
        self.broken: dict[str, list[Problem]] = {}

    def finish(self, known: Sequence[Problem]) -> tuple[dict[str, Any], list[Problem]]:
        values = self._section("", self.raw)
        self._fold_broken()
        touched = {problem.key for problem in (*known, *self.problems)} | {
            follower.key for problem in self.problems for follower in problem.follows
        }
        for keys, message in findings(lambda path: at(values, path), lambda path: self.replay.origin(path) is not None):
            if not touched & set(keys):
                self.problems.append(Problem(keys[0], message + self._others(keys), self._where(keys)))
        return values, self.problems

    def _section(self, path: str, node: dict[str, Any]) -> dict[str, Any]:
        return {name: self._value(f"{path}.{name}" if path else name, value) for name, value in node.items()}

    def _value(self, path: str, value: Any) -> Any:
        section = self.schema.sections.get(path)
        if section is not None:
            if isinstance(value, dict):
                return self._section(path, value)
            return None if value is None else self._referenced_section(path, value)
        key = self.schema.keys.get(path)
        if key is None:
            return value
        return self._key(key, value)

    def _key(self, key: Key, value: Any) -> Any:
        resolved = self._resolved(key.path, value)
        if resolved is MISSING:
            return key.default
        if key.kind.name == "list" and key.kind.item is not None and key.kind.item.name == "section":
            return self._items(key, resolved)
        if _holds_reference(value):
            try:
                kind = Kind("any", optional=True) if key.kind.name == "map" and not is_interpolation(value) else key.kind
                resolved = check(kind, key.constraints, _literal(resolved))
            except Refused as refusal:
                self._refuse(key.path, f"{refusal}, from {value}")
                return key.default
        if key.constraints.required and resolved in (None, ""):
            message = f"{MISSING_VALUE}: {expectation(key.kind, key.constraints)}"
            self.problems.append(Problem(key.path, message.removesuffix(", or null"), ""))
        return resolved

    def _items(self, key: Key, items: Any) -> Any:
        """Items of a list of sections get the defaults that they do not say."""
        if not isinstance(items, list):
            return items
        prefix = f"{key.path}[]."
        inner = [k for path, k in self.schema.keys.items() if path.startswith(prefix)]
        complete = []
        for index, item in enumerate(items):
            filled = {k.name: item.get(k.name, k.default) for k in inner}
            for k in inner:
                try:
                    filled[k.name] = check_key(k, filled[k.name])
                except Refused as refusal:
                    self._refuse(f"{key.path}[{index}].{k.name}", str(refusal))
            complete.append(filled)
        return complete

    def _referenced_section(self, path: str, value: Any) -> Any:
        resolved = self._resolved(path, value)
        if resolved is MISSING or resolved is None:
            return None
        if not isinstance(resolved, dict):
            self._refuse(path, f"is a section, and {value} leads to {resolved!r}")
            return None
        read = Reader(self.schema, lambda _: self._where((path,))).read_at(path, node_of(resolved))
        self.problems += read.problems
        return {**self.schema.section_defaults(path), **resolved}

    def _resolved(self, path: str, value: Any) -> Any:
        if not _holds_reference(value):
            return value
        try:
            return self.resolver.resolve(path, value)
        except Broken as broken:
            problem = Problem(path, str(broken), self._where((path,)))
            cause = broken.source or path
            self.broken.setdefault(cause, []).append(problem)
            return MISSING

    def _fold_broken(self) -> None:
        """One problem for each end that leads nowhere; whoever refers to it follows from it."""
        for cause, found in self.broken.items():
            own = next((problem for problem in found if problem.key == cause), found[0])
            followers = tuple(problem for problem in found if problem is not own)
            self.problems.append(Problem(own.key, own.message, own.where, followers))

    def _refuse(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message, self._where((path,))))

    def _where(self, keys: Sequence[str]) -> str:
        for key in keys:
            origin = self.replay.origin(key)
            if origin is not None:
                return origin.where
        return "default"

    def _others(self, keys: Sequence[str]) -> str:
        places = [(key, self.replay.origin(key)) for key in keys[1:]]
        said = [f"{key} is set at {origin.where}" for key, origin in places if origin is not None]
        return f" ({'; '.join(said)})" if said else ""


def _holds_reference(value: Any) -> bool:
    if isinstance(value, list):
        return any(_holds_reference(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_reference(item) for item in value.values())
    return is_interpolation(value)


def _literal(value: Any) -> Any:
    """A resolved value is final: `${` in it is text, so it must not pass as a reference again."""
    return value


