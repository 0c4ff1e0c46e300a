"""The layer of known datasets: keys that follow from the name of a dataset.

It lies between groups and the body of the user's file, and below a group that itself names the dataset.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from areal_like.config.built_in import TASKS
from areal_like.config.checks.values import is_interpolation
from areal_like.config.dotted_path import nested, value_at
from areal_like.config.interpolation import BrokenReference, ReferenceResolver
from areal_like.config.known_datasets import (
    ANSWER_KEYS,
    KNOWN_DATASETS,
    NONE,
    PATHS,
    ROW_KEYS,
    TYPES,
    answer_keys,
    find_known,
    known_as,
    row_keys,
)
from areal_like.config.problems import Problem
from areal_like.config.schema import Schema, ancestors
from areal_like.config.sections.data import ROW_LISTS, paths_of
from areal_like.config.sources.layers import Layer
from areal_like.config.sources.leaves import LayerReader, Leaf
from areal_like.config.sources.overrides import to_yaml_node
from areal_like.config.suggest import nearest

TABLE, TRAIN, VALID = "known_datasets", "train_dataset", "valid_dataset"
ENTRY_KEYS = (PATHS, *TYPES, *ROW_KEYS, *ANSWER_KEYS)


def known_layer(
    schema: Schema, layers: Sequence[Layer], body: int, overrides: Sequence[Layer]
) -> tuple[Layer, list[Problem]]:
    """The layer, and its problems. `layers` are those of files, weakest first; `body` is the index of the user's."""
    leaves = {leaf.path: leaf for layer in (*layers, *overrides) for leaf in layer.leaves}
    is_typed = any(_names_data(layer) for layer in overrides)
    named_at = max((at for at, layer in enumerate(layers) if _names_data(layer)), default=body)
    kept = (*layers[body if is_typed else min(named_at, body) :], *overrides)
    taken = {leaf.path: leaf.value for layer in kept for leaf in layer.leaves}
    reader = _KnownReader(schema, nested((path, leaf.value) for path, leaf in leaves.items()), leaves)
    found = tuple(leaf for leaf in reader.leaves() if not _is_set(leaf.path, taken))
    return Layer("known dataset", found), reader.problems


def known_name(schema: Schema, layers: Sequence[Layer]) -> str | None:
    """The name of the known dataset that `train_dataset` has."""
    leaves = {leaf.path: leaf for layer in layers for leaf in layer.leaves}
    return _KnownReader(schema, nested((path, leaf.value) for path, leaf in leaves.items()), leaves).entry(TRAIN)


def _names_data(layer: Layer) -> bool:
    return any(leaf.path in (f"{TRAIN}.path", f"{TRAIN}.known") for leaf in layer.leaves)


def _is_set(path: str, taken: Mapping[str, Any]) -> bool:
    """Whether a key is set, itself or above it; a reward also by its parts, or by a task that may bring its own."""
    if path == "reward.name" and (taken.get("task.name") or taken.get("reward.parts")):
        return True
    return path in taken or any(is_interpolation(taken.get(above)) for above in ancestors(path))


def with_known_items(schema: Schema, values: dict[str, Any]) -> list[Problem]:
    """Adds to each benchmark and environment what the name of its dataset implies and it does not set; returns the
    problems. A list is one value, so that no layer below it could have the keys of its items."""
    found = {place: value_at(values, place) for place in ROW_LISTS}
    lists = {place: items for place, items in found.items() if isinstance(items, list) and items}
    if not lists:
        return []
    reader = _KnownReader(schema, values, {})
    reader.problems.clear()  # of the table, which are reported already
    for place, items in lists.items():
        for index, item in enumerate(items):
            reader.complete(item, f"{place}.{index}")
    return reader.problems


class _KnownReader:
    """`values` are those that are set, `leaves` their places."""

    def __init__(self, schema: Schema, values: dict[str, Any], leaves: Mapping[str, Leaf]) -> None:
        self.schema, self.values, self.leaves_by_path = schema, values, leaves
        self.tree = schema.complete(self.values, schema.defaults())
        self.resolver = ReferenceResolver(self.tree, schema.names())
        self.problems: list[Problem] = []
        own = {
            name: entry for name, entry in (value_at(self.values, TABLE) or {}).items() if self._is_valid(name, entry)
        }
        self.table: dict[str, Any] = {**KNOWN_DATASETS, **own}

    def leaves(self) -> Iterator[Leaf]:
        """Those of both datasets. What `valid_dataset` has in common with `train_dataset` it follows."""
        train, kind = self.entry(TRAIN), self._get(f"{TRAIN}.type")
        if train is not None:
            keys = {f"{TRAIN}.{name}": value for name, value in row_keys(self.table[train], kind).items()}
            names = answer_keys(self.table[train], kind)
            keys |= {key: value for key, value in names.items() if key in self.schema.keys}
            yield from self._read(
                train, TRAIN, {key: value for key, value in keys.items() if not _is_default(key, value)}
            )
        valid = self.entry(VALID) if isinstance(self.values.get(VALID), dict) else None
        if valid is not None and valid != train:
            keys = row_keys(self.table[valid], self._get(f"{VALID}.type") or kind)
            yield from self._read(valid, VALID, {f"{VALID}.{name}": value for name, value in keys.items()})

    def complete(self, item: dict[str, Any], place: str) -> None:
        """Adds what is known of the rows of an item, and their reward and workflow where none is set."""
        name = self.entry(place)
        if name is None:
            return
        for key, value in row_keys(self.table[name], "rl").items():
            item.setdefault(key, deepcopy(value))
        for key, value in answer_keys(self.table[name], "rl").items():
            section = key.partition(".")[0]
            own = item.get(section) or {}
            takes = f"{place.rpartition('.')[0]}[].{key}" in self.schema.keys
            if takes and not own.get("name") and not own.get("parts"):
                item[section] = {**own, "name": value}

    def entry(self, section: str) -> str | None:
        """The name of the dataset's entry."""
        name, key = self._get(f"{section}.known"), f"{section}.known"
        if name == NONE or (section == VALID and name is None and self._get(f"{TRAIN}.known") == NONE):
            return None
        if name is not None:
            if name in self.table:
                return str(name)
            guess = nearest(str(name), list(self.table))
            hint = f"; did you mean {guess[0]}?" if guess else "."
            there = f"There are: {', '.join(self.table)}; further ones are set in {TABLE}, and {NONE} is none"
            self._refuse(key, f"{name!r} is not a known dataset{hint} {there}")
            return None
        path = self._get(f"{section}.path")
        is_path = isinstance(path, str) or (isinstance(path, list) and all(isinstance(each, str) for each in path))
        paths = [each for each in (paths_of(path) if is_path else ()) if not self._is_task(each)]
        found = find_known(paths, self.table)
        if len(found) > 1:
            self._refuse(f"{section}.path", self._several(paths, found, key))
        return found[0] if len(found) == 1 else None

    def _several(self, paths: Sequence[str], found: Sequence[str], key: str) -> str:
        for path in paths:
            if len(names := known_as(path, self.table)) > 1:
                choices = " or ".join(f"{key}={name}" for name in names)
                return f"{path} is known as {' and '.join(names)}: choose one, {choices}, or {key}={NONE}"
        all_of = f"rows of one dataset have the same columns, and these are known as {', '.join(found)}"
        choices = " or ".join(f"{key}={name}" for name in found)
        return f"{all_of}: convert them to the same columns, and set {key}={NONE}, or {choices} if all are like that"

    def _is_task(self, path: str) -> bool:
        return path in TASKS or path == self._get("task.name")

    def _get(self, path: str) -> Any:
        """The value that layers set, references followed; None for a broken one, which is reported elsewhere."""
        try:
            return self.resolver.resolve(path, value_at(self.tree, path))
        except BrokenReference:
            return None

    def _is_valid(self, name: str, entry: Any) -> bool:
        where = f"{TABLE}.{name}"
        if not isinstance(entry, dict):
            self._refuse(where, f"{entry!r:.60} is not a mapping; write `paths:`, `fields:` and so on below it")
            return False
        places = [
            (where, entry),
            *((f"{where}.{kind}", entry[kind]) for kind in TYPES if isinstance(entry.get(kind), dict)),
        ]
        for place, keys in places:
            for unknown in (key for key in keys if key not in ENTRY_KEYS):
                guess = nearest(unknown, ENTRY_KEYS)
                hint = f"; did you mean {guess[0]}?" if guess else "."
                self._refuse(f"{place}.{unknown}", f"no such key{hint} There are: {', '.join(ENTRY_KEYS)}")
        paths = entry.get(PATHS, [])
        if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
            self._refuse(f"{where}.{PATHS}", f"{paths!r:.60} is not a list of names; write [org/name]")
            return False
        wrong = next((kind for kind in TYPES if not isinstance(entry.get(kind, {}), dict)), None)
        if wrong is not None:
            self._refuse(f"{where}.{wrong}", f"{entry[wrong]!r:.60} is not a mapping; write keys below it")
        return wrong is None

    def _read(self, name: str, section: str, keys: Mapping[str, Any]) -> Iterator[Leaf]:
        """The keys of an entry, checked as if a file had them."""
        path = self._get(f"{section}.path")
        where = f"{path if isinstance(path, str) else section} is known as {name}"
        for key, value in keys.items():
            read = LayerReader(self.schema, lambda _: where).read_at(key, to_yaml_node(value))
            self.problems += [replace(problem, where=f"{TABLE}.{name}") for problem in read.problems]
            yield from read.leaves

    def _refuse(self, key: str, message: str) -> None:
        leaf = self.leaves_by_path.get(key)
        self.problems.append(Problem(key, message, leaf.where if leaf is not None else ""))


def _is_default(key: str, value: Any) -> bool:
    name = key.rpartition(".")[2]
    return key.startswith(TRAIN) and ROW_KEYS[name] == value
