"""From a file and the words of a command line to a configuration that is right, or to all that is wrong with it.

The order of the layers, weakest first: the schema's defaults, the groups that the schema chooses, the groups in the
file's `defaults:`, the file's body, groups on the command line, values on the command line. Hydra merges; the root
that it starts from is made here, because Hydra by itself would put the file's body above a group chosen on the
command line. Types are checked where they are written, before the merge, so that a message has a file and a line.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_like.config.allocation import machine
from areal_like.config.allocation.experiment import allocate
from areal_like.config.defaults_list import DefaultsList, read_defaults
from areal_like.config.dialects.areal import infer_experiment, legacy, subclass_keys
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.finish import finish
from areal_like.config.leaves import Leaf, Reader
from areal_like.config.library import Library
from areal_like.config.loaded import Loaded, build, experiment_of, redactor
from areal_like.config.overrides import GroupChoice, Overrides, parse_words, read_words
from areal_like.config.problems import ConfigError, Problem, fold
from areal_like.config.provenance import Layer, LayerKind, Replay, complete
from areal_like.config.schema import Schema
from areal_like.config.shipped import find_config
from areal_like.config.user_schema import load_schema
from areal_like.config.yaml_reader import Node, YamlFile


def load(config: str | Path, overrides: Sequence[str] = (), schema: str | None = None) -> Loaded:
    """Composes and checks one experiment; raises ConfigError with every problem that was found."""
    return Composition(config, overrides, schema).load()


class Composition:
    """One composition, step by step; `problems` gathers what is wrong on the way."""

    def __init__(self, config: str | Path, overrides: Sequence[str], schema: str | None) -> None:
        self.file = find_config(config)
        self.library = Library(self.file)
        self.problems: list[Problem] = []
        self.schema_name = schema
        self.words, unread = parse_words(overrides)
        self.problems += unread
        self.texts = tuple(overrides)
        self.yaml = self._read_file()
        assert self.yaml.root is not None
        self.body: dict[str, Node] = dict(self.yaml.root.value)
        self.defaults_node = self.body.pop("defaults", None)
        self.hydra_node = self.body.pop("hydra", None)
        self.experiment = self._experiment()
        cls = load_schema(schema) if schema else EXPERIMENTS[self.experiment]
        self.experiment = experiment_of(cls)
        self.schema = Schema.of(cls)
        self.top = {name.partition(".")[0] for name in self.schema.names()}
        self.foreign: list[Leaf] = []
        self.contents: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}
        self.lists: dict[str, DefaultsList] = {}

    def load(self) -> Loaded:
        from areal_like.config import hydra_source

        overrides = read_words(self.words, self.schema, self.library.options_of)
        self.problems += [self._with_hint(problem) for problem in overrides.problems]
        self._make_root(overrides)
        served = hydra_source.Served(self._content, self.library.options_of)
        try:
            with hydra_source.serving(served):
                layers = self._layers(hydra_source.merge_order(), overrides)
                replay = self._replay(layers)
                words = [value.hydra for value in overrides.values if self._applies(value.deletes, replay)]
                composed = hydra_source.compose(words)
        except hydra_source.HydraRefused as error:
            self.problems.append(Problem(self.yaml.shown, f"cannot be composed: {error}"))
            raise ConfigError(fold(self.problems)) from None
        composed.pop("hydra", None)
        raw = complete(self.schema, composed)
        replay.apply(layer for layer in layers if layer.kind == "override")
        complete(self.schema, replay.tree)
        if replay.tree != raw and not self.problems:
            raise ProvenanceMismatch(_difference(raw, replay.tree))
        values, found = finish(self.schema, raw, replay, self.problems, self.file.resolve().parent)
        self.problems += found
        self._allocate(values, replay)
        if self.problems:
            shown = redactor(self.schema, values, replay)
            raise ConfigError(
                replace(p, message=shown.text(p.message), where=shown.text(p.where)) for p in fold(self.problems)
            )
        return Loaded(
            file=self.file,
            overrides=self.texts,
            experiment=self.experiment,
            schema=self.schema,
            schema_name=self.schema_name,
            raw=raw,
            values=values,
            replay=replay,
            foreign=tuple(self.foreign),
        )

    def _allocate(self, values: dict[str, Any], replay: Replay) -> None:
        """What runs where must be one answer; what this machine lacks for it is the plan's to say."""
        wrong = {problem.key for problem in self.problems}
        _, findings = allocate(build(self.schema.cls, values), machine())
        for finding in findings:
            keys = (finding.key, *finding.also)
            if wrong.isdisjoint(keys):
                origins = [origin for key in keys if (origin := replay.origin(key)) is not None]
                self.problems.append(Problem(finding.key, finding.message, origins[0].where if origins else ""))

    def _read_file(self) -> YamlFile:
        file = self.library.read(self.file, allow_empty=False)
        if file.root is None:
            raise ConfigError([*self.problems, *file.problems])
        said = legacy(file.root.plain())
        if said:
            raise ConfigError([Problem(file.shown, said)])
        self.problems += file.problems
        return file

    def _experiment(self) -> str:
        """Said on the command line, or in the file's `defaults:`, or inferred from what the file holds."""
        said = [str(word.parsed.value()) for word in self.words if word.key == "experiment"]
        items = self.defaults_node.value if self.defaults_node and isinstance(self.defaults_node.value, list) else []
        in_file = [
            str(option.value)
            for item in items
            if isinstance(item.value, dict)
            for name, option in item.value.items()
            if name.split()[-1:] and name.split()[-1].lstrip("/") == "experiment"
        ]
        known = [name for name in (*said, *in_file) if name in EXPERIMENTS]
        return known[0] if known else infer_experiment(self._said_in_files(self.yaml, self.body, items, {self.file}))

    def _said_in_files(
        self, file: YamlFile, body: dict[str, Node], defaults: Sequence[Node], seen: set[Path]
    ) -> dict[str, Any]:
        """What a file holds, and below it what the files that it builds on hold (top-level keys only are merged)."""
        merged: dict[str, Any] = {}
        for item in defaults:
            path = self.library.path_of(item.value.lstrip("/")) if isinstance(item.value, str) else None
            if path is None or path in seen:
                continue
            included = self.library.read(path)
            below = dict(included.root.value) if included.root is not None else {}
            node = below.pop("defaults", None)
            inner = node.value if node is not None and isinstance(node.value, list) else []
            merged |= self._said_in_files(included, below, inner, {*seen, path})
        return {**merged, **{name: node.plain() for name, node in body.items()}}

    # The root that Hydra starts from

    def _make_root(self, overrides: Overrides) -> None:
        from areal_like.config.hydra_source import ROOT, SCHEMA, without_hydras_own

        own = self._read_lists(overrides)
        chosen = set(overrides.groups) | set().union(*(listed.groups for listed in self.lists.values()))
        entries: list[Any] = [SCHEMA]
        if "experiment" not in chosen:
            entries.append({"experiment": self.experiment})
        entries += own.entries if own.has_self else [*own.entries, "_self_"]
        for choice in overrides.groups.values():
            entries.append({choice.key: _option(choice)})
        entries += without_hydras_own()
        self.contents[ROOT] = ({"defaults": entries}, {})
        self.contents[SCHEMA] = ({}, {})

    def _read_lists(self, overrides: Overrides) -> DefaultsList:
        """The `defaults:` lists of the file and of everything that it builds on, each once."""
        chosen = set(overrides.groups)
        own = self._read_list("", self.yaml, self.defaults_node, chosen)
        chosen |= own.overridden
        waiting = [
            *own.configs,
            *(f"{c.key.partition('@')[0]}/{o}" for c in overrides.groups.values() for o in c.options),
        ]
        if "experiment" not in chosen | own.groups:
            waiting.append(f"experiment/{self.experiment}")
        while waiting:
            name = waiting.pop()
            path = self.library.path_of(name)
            if name in self.lists or path is None:
                continue
            file = self.library.read(path)
            self.problems += file.problems
            root = file.root.value if file.root is not None else {}
            listed = self._read_list(name, file, root.get("defaults"), chosen)
            waiting += listed.configs
        self._refuse_circles()
        self._refuse_groups_chosen_twice()
        return own

    def _refuse_groups_chosen_twice(self) -> None:
        """In one tree of files a group is chosen once; the outer file can override what an inner one chose."""
        chosen: dict[str, str] = {}
        for name, listed in self.lists.items():
            path = self.library.path_of(name) if name else self.file
            assert path is not None
            place = self.library.read(path).shown
            for group in listed.groups:
                if group in chosen:
                    message = f"the group is chosen in {chosen[group]} and in {place}; write `- override /{group}: ...`"
                    raise ConfigError([*self.problems, Problem(group, f"{message} in the outer one", place)])
                chosen.setdefault(group, place)

    def _refuse_circles(self) -> None:
        """A file that builds on itself has no end; nothing can be said of what else is in it."""
        for name in self.lists:
            path = self.library.path_of(name) if name else None
            if path is not None and name in self._built_on(self.lists[name].configs):
                message = "builds on itself, directly or through another file; take it out of one `defaults:` list"
                raise ConfigError([*self.problems, Problem(self.library.read(path).shown, message)])

    def _built_on(self, names: Sequence[str]) -> set[str]:
        """The files that these are and build on."""
        reached: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self.lists[name].configs if name in self.lists else []
        return reached

    def _read_list(self, name: str, file: YamlFile, node: Node | None, chosen: set[str]) -> DefaultsList:
        listed = read_defaults(
            node,
            name.rpartition("/")[0],
            lambda line: f"{file.shown}:{line}",
            lambda wanted: self.library.path_of(wanted) is not None,
            self.library.options_of,
            chosen,
        )
        self.problems += listed.problems
        self.lists[name] = listed
        return listed

    def _content(self, name: str) -> tuple[dict[str, Any], dict[str, str]] | None:
        """What Hydra is served under a config path; before a layer has been checked, its `defaults:` list alone."""
        if name in self.contents:
            return self.contents[name]
        path = self.library.path_of(name)
        if path is None or name not in self.lists:
            return None
        listed = self.lists[name]
        return {"defaults": listed.entries} if listed.entries else {}, self.library.read(path).header

    # The layers

    def _layers(self, order: list[tuple[str, str]], overrides: Overrides) -> list[Layer]:
        from areal_like.config.hydra_source import ROOT, SCHEMA

        layers = []
        for name, package in order:
            if name == SCHEMA:
                continue
            package = "" if name == ROOT else package
            file, body = self._part(name)
            reader = Reader(self.schema, lambda line, file=file: f"{file.shown}:{line}", package)  # type: ignore[misc]
            read = reader.read(Node(body, 1))
            self.problems += [self._with_hint(problem, package) for problem in read.problems]
            self.foreign += read.foreign
            layers.append(Layer(self._kind(name, overrides), file.shown, tuple(read.leaves)))
            self._serve(name, package, read.leaves)
        for value in overrides.values:
            layers.append(Layer("override", value.hydra, value.leaves, value.deletes))
        self.foreign += overrides.foreign
        self._refuse_below_references(layers)
        opened = {
            section
            for layer in layers
            for leaf in layer.leaves
            for section in self.schema.optional_above(leaf.path)
            if section != leaf.path
        }
        self.contents[SCHEMA] = (self.schema.defaults(opened), {})
        return layers

    def _part(self, name: str) -> tuple[YamlFile, dict[str, Node]]:
        from areal_like.config.hydra_source import ROOT

        if name == ROOT:
            return self.yaml, self.body
        path = self.library.path_of(name)
        assert path is not None
        file = self.library.read(path)
        body = dict(file.root.value) if file.root is not None else {}
        body.pop("defaults", None)
        return file, body

    def _serve(self, name: str, package: str, leaves: Sequence[Leaf]) -> None:
        """Gives Hydra the layer as it was read: without what is wrong in it, aliases by their real names."""
        below = f"{package}." if package else ""
        tree = Replay(self.schema, {})
        for leaf in leaves:
            if leaf.path.startswith(below):
                tree.set(leaf.path.removeprefix(below), leaf.value)
        content, header = self._content(name) or ({}, {})
        self.contents[name] = ({**content, **tree.tree}, header)

    def _kind(self, name: str, overrides: Overrides) -> LayerKind:
        from areal_like.config.hydra_source import ROOT

        if name == ROOT:
            return "file"
        choices = [f"{c.key.partition('@')[0]}/{option}" for c in overrides.groups.values() for option in c.options]
        if name in self._built_on(choices):
            return "group of the command line"
        by_schema = not any("experiment" in listed.groups for listed in self.lists.values())
        if by_schema and name in self._built_on([f"experiment/{self.experiment}"]):
            return "group of the schema"
        return "group of the file"

    def _with_hint(self, problem: Problem, package: str = "") -> Problem:
        """An unknown key may belong to another kind of experiment, stand in a group file that means the top of the
        tree, or be one of the user's own, whose class we were not told."""
        if not problem.message.startswith("no such key"):
            return problem
        section = problem.key.partition(".")[0]
        others = [kind for kind, cls in EXPERIMENTS.items() if section in Schema.of(cls).sections]
        if others and self.experiment not in others:
            message = f"a {self.experiment} experiment has no {section} (experiment={' or '.join(others)} has)"
            return Problem(problem.key, message, problem.where)
        below = problem.key.removeprefix(f"{package}.")
        if package and (problem.key == package or (below != problem.key and below.partition(".")[0] in self.top)):
            message = f"no such key; the file of a group sets keys below its folder's name ({package})"
            return Problem(problem.key, f"{message}; begin it with `# @package _global_` to set others", problem.where)
        if self.schema_name:
            return problem
        hints = subclass_keys({name: node.plain() for name, node in self.body.items()})
        if problem.key in hints:
            return Problem(problem.key, hints[problem.key], problem.where)
        if problem.message != "no such key":
            return problem
        message = "no such key; if it is one of your own, name the class that has it: --schema my.module:MyConfig"
        return Problem(problem.key, message, problem.where)

    def _refuse_below_references(self, layers: Sequence[Layer]) -> None:
        """`critic.optimizer: ${actor.optimizer}` and `critic.optimizer.lr=1`: the second would reach into the first."""
        references: dict[str, Leaf] = {}
        for layer in layers:
            for leaf in layer.leaves:
                above = next((path for path in references if leaf.path.startswith(path + ".")), None)
                if above is not None:
                    said = f"{references[above].value} ({references[above].where})"
                    message = f"{above} is {said}; keys below a reference cannot be set"
                    self.problems.append(Problem(leaf.written, message, leaf.where))
                if (
                    isinstance(leaf.value, str)
                    and "${" in leaf.value
                    and (leaf.path in self.schema.sections or self._is_map(leaf.path))
                ):
                    references[leaf.path] = leaf
                else:
                    references.pop(leaf.path, None)

    def _is_map(self, path: str) -> bool:
        key = self.schema.keys.get(path)
        return key is not None and key.kind.name in ("map", "any", "union")

    def _replay(self, layers: Sequence[Layer]) -> Replay:
        from areal_like.config.hydra_source import SCHEMA

        replay = Replay(self.schema, self.schema_tree(SCHEMA))
        return replay.apply(layer for layer in layers if layer.kind != "override")

    def schema_tree(self, name: str) -> dict[str, Any]:
        from copy import deepcopy

        return deepcopy(self.contents[name][0])

    def _applies(self, deletes: str | None, replay: Replay) -> bool:
        if deletes is None or replay.has(deletes):
            return True
        self.problems.append(Problem(deletes, "no such entry to delete", f"override ~{deletes}"))
        return False


class ProvenanceMismatch(RuntimeError):
    """The replay of the layers and Hydra's composition differ: a mistake in this package, never in a configuration."""


def _option(choice: GroupChoice) -> Any:
    if not choice.options:
        return None
    return choice.options[0] if len(choice.options) == 1 else list(choice.options)


def _difference(composed: Any, replayed: Any, path: str = "") -> str:
    if isinstance(composed, dict) and isinstance(replayed, dict):
        for name in {**composed, **replayed}:
            if composed.get(name) != replayed.get(name) or (name in composed) != (name in replayed):
                return _difference(composed.get(name), replayed.get(name), f"{path}.{name}".lstrip("."))
    return f"{path}: composed {composed!r}, replayed {replayed!r}; please report this"
