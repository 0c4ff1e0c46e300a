"""Resolves references, checks their values, required keys, agreement of keys and user code."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_like.config.checks.config_checks import VALUE_CHECKS
from areal_like.config.checks.registry import run_checks
from areal_like.config.checks.values import InvalidValue, check_key, check_value, expectation, is_interpolation
from areal_like.config.dotted_path import MISSING, value_at
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.interpolation import WHOLE, BrokenReference, FromEnvironment, ReferenceResolver, references_in
from areal_like.config.problems import MISSING_VALUE, Problem, Stage
from areal_like.config.schema import Key, Schema, Section, is_list_of_sections
from areal_like.config.sources.layers import GROUPS, Provenance
from areal_like.config.sources.leaves import LayerReader
from areal_like.config.sources.overrides import to_yaml_node
from areal_like.config.sources.yaml_file import scalar

TASK, NO_TASK = "task.name", "task=null leaves out the task, with all that its group sets"


def resolve_and_check(
    schema: Schema, raw: dict[str, Any], provenance: Provenance, known: Sequence[Problem], folder: Path
) -> tuple[dict[str, Any], list[Problem]]:
    """The resolved values, and their problems. `raw` is not changed."""
    return _ValueChecker(schema, raw, provenance).finish(known, folder)


class _ValueChecker:
    def __init__(self, schema: Schema, raw: dict[str, Any], provenance: Provenance) -> None:
        self.schema, self.raw, self.provenance = schema, raw, provenance
        self.resolver = ReferenceResolver(raw, schema.names())
        self.problems: list[Problem] = []

    def finish(self, known: Sequence[Problem], folder: Path) -> tuple[dict[str, Any], list[Problem]]:
        values = self._section("", self.raw)
        found = (*known, *self.problems)
        touched = {each.key for problem in found for each in (problem, *problem.follows)}
        self.problems = self._folded()
        facts = {
            "values": values,
            "get": lambda path: value_at(values, path),
            "folder": folder,
            "schema": self.schema,
            "own_class": self.schema.cls not in EXPERIMENTS.values(),
        }
        for problem in run_checks(VALUE_CHECKS, facts, Stage.INVALID):
            keys = (problem.key, *problem.also)
            if touched.isdisjoint(keys):
                message = problem.message + self._others(problem.also)
                self.problems.append(replace(problem, message=message, where=self._where(keys)))
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
        if is_list_of_sections(key.kind):
            return self._items(key, resolved)
        if _holds_reference(value):
            if isinstance(resolved, FromEnvironment):
                resolved = scalar(resolved) if key.kind.name in ("bool", "int", "float") else str(resolved)
            try:
                resolved = check_value(key.kind, key.constraints, resolved, references=False)
            except InvalidValue as refusal:
                self._misfit(key.path, value, str(refusal))
                return key.default
        if key.constraints.required and resolved in (None, ""):
            message = f"{MISSING_VALUE}: {expectation(key.kind, key.constraints)}"
            where = self._where((key.path,)) if self.provenance.origin(key.path) is not None else ""
            self.problems.append(Problem(key.path, message.removesuffix(", or null"), where))
        return resolved

    def _misfit(self, path: str, value: Any, refusal: str) -> None:
        """A referenced value that is invalid here: reported at the key that is set, by the user rather than a group."""
        origin = self.provenance.origin(path)
        by_group = (
            origin is not None and origin.kind in GROUPS and isinstance(value, str) and bool(WHOLE.fullmatch(value))
        )
        if origin is not None and not by_group:
            self._refuse(path, f"{refusal}, from {value}")
            return
        followed = [path]
        while (references := references_in(value_at(self.raw, followed[-1]))) and references[0] not in followed:
            followed.append(references[0])
        source = next((p for p in followed[by_group:] if self.provenance.origin(p) is not None), path)
        known_cause = next((problem for problem in self.problems if problem.key == source), None)
        if known_cause is None:
            hint = f"; {NO_TASK}" if by_group and source == TASK else ""
            self._refuse(source, f"{refusal} (for {path}, which follows it){hint}")
        else:
            follows = (*known_cause.follows, Problem(path, refusal, self._where((source,))))
            self.problems[self.problems.index(known_cause)] = replace(known_cause, follows=follows)

    def _items(self, key: Key, items: Any) -> Any:
        """Adds defaults to the items of a list of sections."""
        if not isinstance(items, list):
            return items
        return [self._item(f"{key.path}[]", item, f"{key.path}.{index}") for index, item in enumerate(items)]

    def _item(self, path: str, item: dict[str, Any], place: str) -> dict[str, Any]:
        """One item, or a section in it."""
        filled: dict[str, Any] = {}
        for entry in self.schema.children(path):
            name = entry.name
            if isinstance(entry, Section):
                given = item.get(name, None if entry.default_null else {})
                filled[name] = None if given is None else self._item(entry.path, given, f"{place}.{name}")
                continue
            filled[name] = item.get(name, entry.default)
            if is_list_of_sections(entry.kind) and isinstance(filled[name], list):
                below = enumerate(filled[name])
                filled[name] = [self._item(f"{entry.path}[]", each, f"{place}.{name}.{at}") for at, each in below]
                continue
            try:
                filled[name] = check_key(entry, filled[name])
            except InvalidValue as refusal:
                self._refuse(f"{place}.{name}", str(refusal))
        return filled

    def _referenced_section(self, path: str, value: Any) -> Any:
        resolved = self._resolved(path, value)
        if resolved is MISSING or resolved is None:
            return None
        if not isinstance(resolved, dict):
            self._refuse(path, f"is a section, and {value} resolves to {resolved!r}")
            return None
        read = LayerReader(self.schema, lambda _: self._where((path,))).read_at(path, to_yaml_node(resolved))
        self.problems += read.problems
        return {**self.schema.section_defaults(path), **resolved}

    def _resolved(self, path: str, value: Any) -> Any:
        if not _holds_reference(value):
            return value
        try:
            return self.resolver.resolve(path, value)
        except BrokenReference as broken:
            self._refuse(path, str(broken))
            return MISSING

    def _folded(self) -> list[Problem]:
        """Reports a problem of a referenced value once, at its source."""
        by_key = {problem.key: problem for problem in self.problems}
        reached = {key: self._reached(key) for key in by_key}
        causes: dict[str, list[Problem]] = {}
        for key, problem in by_key.items():
            ends = [
                other
                for other in (key, *reached[key])
                if other in by_key
                and all(
                    key in reached[end] or end == other or other in reached[end]
                    for end in reached[other]
                    if end in by_key
                )
            ]
            cause = min(ends, key=lambda end: (self.provenance.origin(end) is None, end))
            causes.setdefault(cause, []).append(problem)
        return [
            replace(
                by_key[cause],
                follows=(*by_key[cause].follows, *(problem for problem in group if problem.key != cause)),
            )
            for cause, group in causes.items()
        ]

    def _reached(self, path: str) -> set[str]:
        """The paths that a value refers to, directly or indirectly."""
        reached: set[str] = set()
        waiting = [path]
        while waiting:
            for text in references_in(value_at(self.raw, waiting.pop())):
                if text not in reached:
                    reached.add(text)
                    waiting.append(text)
        return reached

    def _refuse(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message, self._where((path,))))

    def _where(self, keys: Sequence[str]) -> str:
        for key in keys:
            origin = self.provenance.origin(key) or self.provenance.origin(self.schema.list_above(key) or key)
            if origin is not None:
                return origin.where
        return "default"

    def _others(self, keys: Sequence[str]) -> str:
        places = [(key, self.provenance.origin(key)) for key in keys]
        set_at = [f"{key} is set at {origin.where}" for key, origin in places if origin is not None]
        return f" ({'; '.join(set_at)})" if set_at else ""


def _holds_reference(value: Any) -> bool:
    if isinstance(value, list):
        return any(_holds_reference(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_reference(item) for item in value.values())
    return is_interpolation(value)
