"""Loads a configuration from a file and overrides, or reports all its problems.

The order of the layers, weakest first: defaults of the schema, groups that the schema selects, groups in the file's
`defaults:`, what the name of a dataset implies, the file's body, groups on the command line, values on the command
line. Types are checked per layer, before Hydra merges, so that a message has a file and a line. The values are those
that Hydra composed, above the defaults of the schema; the layers themselves only tell where each value comes from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from areal_like.config.allocation import Machine, detect_machine
from areal_like.config.checks.config_checks import ALLOCATION_CHECKS
from areal_like.config.checks.registry import run_checks
from areal_like.config.checks.values import is_interpolation
from areal_like.config.dependent_keys import dependent_keys, dependents_of
from areal_like.config.dialects.areal import infer_experiment, legacy_file_message, other_version_hint, subclass_keys
from areal_like.config.dialects.areal_evaluation import is_of_areal, script_layer
from areal_like.config.dialects.areal_examples import example_layer
from areal_like.config.dialects.other_frameworks import other_framework_message
from areal_like.config.dotted_path import nested, value_at
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.experiment_folder import experiment_folder
from areal_like.config.loaded import Loaded, build_config, experiment_of, make_redactor
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError, Problem, Stage, fold_consequences, plural
from areal_like.config.resolve import resolve_and_check
from areal_like.config.schema import Schema, accepts_map
from areal_like.config.sources.known_layer import known_layer, known_name, with_known_items
from areal_like.config.sources.layers import Layer, LayerKind, Provenance
from areal_like.config.sources.leaves import LayerReader, Leaf
from areal_like.config.sources.library import Library, find_config
from areal_like.config.sources.overrides import GroupChoice, Overrides, OverrideWord, parse_overrides, read_overrides
from areal_like.config.sources.root import ROOT, SCHEMA, CompositionFiles
from areal_like.config.sources.user_schema import load_schema
from areal_like.config.sources.yaml_file import YamlFile, YamlNode

UNKNOWN = "no such key"
NO_KEYS: Mapping[str, str] = MappingProxyType({})
TRAINED = {"actor": "model", "model": "actor"}
"""The section of the trained model -> its name in the other kinds of experiment."""
EXPERIMENT_TITLES = {"sft": "an SFT", "grpo": "a GRPO", "ppo": "a PPO"}


@dataclass(frozen=True)
class UnknownKeyHints:
    """Hints for unknown keys. `own_class`: the experiment is of a user's class."""

    experiment: str
    schema: Schema
    body: dict[str, YamlNode]
    own_class: bool
    options_of: Callable[[str], list[str] | None]

    def for_problem(self, problem: Problem, package: str = "", choice: GroupChoice | None = None) -> Problem:
        """The problem with a hint: the key is one of another kind of experiment, or a group, or a top-level key in a
        group file, or one of an older or newer AReaL, or declared in a class that `--schema` has to name. `choice`: the
        override that selects the group file of the problem."""
        if choice is not None:
            problem = replace(problem, where=f"{choice.where}, {problem.where}")
        if message := self._option_as_value(problem):
            return replace(problem, message=message)
        if not problem.message.startswith(UNKNOWN):
            return problem
        section = problem.key.partition(".")[0]
        others = [kind for kind, cls in EXPERIMENTS.items() if section in Schema.of(cls).sections]
        if others and self.experiment not in others:
            return replace(problem, message=self._of_another_kind(problem.key, others, choice))
        if package and self._means_the_top(problem.key, package):
            message = f"{UNKNOWN}; the file of this group sets keys below {package}"
            return replace(problem, message=f"{message}; begin it with `# @package _global_` to set others")
        if hint := other_version_hint(problem.key):
            return replace(problem, message=f"{UNKNOWN}: {hint}")
        if self.own_class:
            return problem
        known = subclass_keys({name: node.plain() for name, node in self.body.items()})
        if problem.key in known:
            return replace(problem, message=known[problem.key])
        if problem.message == UNKNOWN:
            message = f"{UNKNOWN}; if it is your own key, name its class: --schema my.module:MyConfig"
            return replace(problem, message=message)
        return problem

    def _of_another_kind(self, key: str, others: list[str], choice: GroupChoice | None) -> str:
        """`others` are the kinds of experiment that have the key's section."""
        section, dot, rest = key.partition(".")
        title = EXPERIMENT_TITLES.get(self.experiment, f"a {self.experiment}")
        message = f"{title} experiment has no {section}"
        twin = f"{TRAINED.get(section, '')}{dot}{rest}"
        if choice is not None:
            return (
                f"{message} (experiment={' or '.join(others)} has); leave {choice.where.removeprefix('override ')} out"
            )
        if twin in self.schema.sections or ALIASES.get(twin, twin) in self.schema.keys:
            return f"{message}; did you mean {twin}?"
        return f"{message} (experiment={' or '.join(others)} has)"

    def _option_as_value(self, problem: Problem) -> str | None:
        """The message for a group that the body of the file sets like a key: `actor: tiny`."""
        written = self.body.get(problem.key)
        is_override = problem.where.startswith("override ")
        if is_override or written is None or not isinstance(written.value, str) or ":" in problem.key:
            return None
        option = written.value
        if option not in (self.options_of(problem.key) or ()):
            return None
        return f"is a group, and {option} one of its options: write `- {problem.key}: {option}` under `defaults:`"

    def _means_the_top(self, key: str, package: str) -> bool:
        below = key.removeprefix(f"{package}.")
        top = {name.partition(".")[0] for name in self.schema.names()}
        return key == package or (below != key and below.partition(".")[0] in top)


def experiment_kind(words: Sequence[OverrideWord], file: YamlFile, library: Library) -> str:
    """The kind of experiment: from the command line, `defaults:`, or the sections of the file. The group `experiment`
    reports unknown names."""
    names = [str(word.parsed.value()) for word in words if word.key == "experiment"]
    for item in file.defaults():
        for name, option in item.value.items() if isinstance(item.value, dict) else ():
            if name.split()[-1:] and name.split()[-1].lstrip("/") == "experiment":
                names.append(str(option.value))
    known = [name for name in names if name in EXPERIMENTS]
    return known[0] if known else infer_experiment(_body_with_bases(file, library, {file.path}))


def _body_with_bases(file: YamlFile, library: Library, seen: set[Path]) -> dict[str, Any]:
    """The body of a file, over the bodies of the files that it includes."""
    merged: dict[str, Any] = {}
    for item in file.defaults():
        path = library.path_of(item.value.lstrip("/")) if isinstance(item.value, str) else None
        if path is not None and path not in seen:
            merged = _merge_sections(merged, _body_with_bases(library.read(path), library, {*seen, path}))
    return _merge_sections(merged, {name: node.plain() for name, node in file.body().items()})


def _merge_sections(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges section by section."""
    both = [name for name in above if isinstance(above[name], dict) and isinstance(below.get(name), dict)]
    return {**below, **above, **{name: _merge_sections(below[name], above[name]) for name in both}}


def set_below_references(layers: Sequence[Layer], schema: Schema) -> Iterator[Problem]:
    """Keys that a layer sets below a section or map that is a reference in a weaker layer: `critic.optimizer:
    ${actor.optimizer}` and then `critic.optimizer.lr=1`."""
    references: dict[str, Leaf] = {}
    for layer in layers:
        for leaf in layer.leaves:
            above = next((path for path in references if leaf.path.startswith(path + ".")), None)
            if above is not None:
                reference = f"{references[above].value} ({references[above].where})"
                yield Problem(leaf.written, f"{above} is {reference}; keys below a reference cannot be set", leaf.where)
            key = schema.keys.get(leaf.path)
            holds_keys = leaf.path in schema.sections or (key is not None and accepts_map(key.kind))
            if holds_keys and is_interpolation(leaf.value):
                references[leaf.path] = leaf
            else:
                references.pop(leaf.path, None)


def load(
    config: str | Path,
    overrides: Sequence[str] = (),
    schema: str | None = None,
    machine: Machine | None = None,
    dependents: Mapping[str, str] = NO_KEYS,
) -> Loaded:
    """Composes and checks one experiment; raises ConfigError with every problem. `known` replaces the detected machine.
    `dependents` are further keys of the file that follow keys which the overrides set."""
    return Composition(config, overrides, schema, machine, dependents).load()


class Composition:
    """One composition, step by step, with its problems."""

    def __init__(
        self,
        config: str | Path,
        overrides: Sequence[str],
        schema: str | None,
        machine: Machine | None = None,
        dependents: Mapping[str, str] = NO_KEYS,
    ) -> None:
        self.machine = machine
        self.path = find_config(config)
        self.folder = experiment_folder(self.path)
        self.library = Library(self.folder)
        self.words, self.problems = parse_overrides(overrides)
        self.overrides = tuple(overrides)
        self.schema_name = schema
        self.file = self._read_file()
        cls = load_schema(schema) if schema else EXPERIMENTS[experiment_kind(self.words, self.file, self.library)]
        self.experiment, self.schema = experiment_of(cls), Schema.of(cls)
        self.dependents = {**dependent_keys(self.schema), **dependents}
        self.hints = UnknownKeyHints(
            self.experiment, self.schema, self.file.body(), schema is not None, self.library.options_of
        )
        self.foreign: list[Leaf] = []

    def load(self) -> Loaded:
        overrides = read_overrides(self.words, self.schema, self.library.options_of)
        self.problems += [self.hints.for_problem(problem) for problem in overrides.problems]
        self.foreign += overrides.foreign
        files = CompositionFiles(self.library, self.file, self.experiment, overrides.groups)
        self.problems += files.problems
        raw, provenance = self._compose(files, overrides)
        values, problems = resolve_and_check(self.schema, raw, provenance, self.problems, self.folder)
        self.problems += problems
        self._allocate(values, provenance)
        if self.problems:
            shown = make_redactor(self.schema, values, provenance)
            raise ConfigError(
                replace(p, message=shown.text(p.message), where=shown.text(p.where))
                for p in fold_consequences(self.problems)
            )
        return Loaded(
            file=self.path,
            folder=self.folder,
            overrides=self.overrides,
            experiment=self.experiment,
            schema=self.schema,
            schema_name=self.schema_name,
            raw=raw,
            values=values,
            provenance=provenance,
            foreign=tuple(self.foreign),
        )

    def _read_file(self) -> YamlFile:
        file = self.library.read(self.path, allow_empty=False)
        if file.root is None:
            raise ConfigError([*self.problems, *file.problems])
        body = file.root.plain()
        message = legacy_file_message(body)
        if message is None and self.schema_name is None:  # else keys of other frameworks may be the user's own
            message = other_framework_message(body)
        if message:
            raise ConfigError([Problem(file.shown, message)])
        self.problems += file.problems
        return file

    def _compose(self, files: CompositionFiles, overrides: Overrides) -> tuple[dict[str, Any], Provenance]:
        """The composed tree with unresolved references, and where its values come from."""
        from areal_like.config.sources.hydra_source import HydraComposition, HydraCompositionError

        changed_paths = {leaf.path for layer in overrides.values for leaf in layer.leaves}
        try:
            composition = HydraComposition(files)
            layers, trees = [], {}
            for name, package in composition.order():
                layer = self._layer(files, name, package, changed_paths)
                below = f"{package}." if package else ""
                inside = (leaf for leaf in layer.leaves if leaf.path.startswith(below))
                trees[name] = nested((leaf.path.removeprefix(below), leaf.value) for leaf in inside)
                layers.append(layer)
            layers = self._with_known(layers, overrides.values, trees)
            self.problems += set_below_references([*layers, *overrides.values], self.schema)
            defaults = self.schema.defaults(self._opened([*layers, *overrides.values]))
            trees[SCHEMA] = self.schema.maps(defaults)
            composed, refused = composition.compose(trees, overrides.values)
            self.problems += with_known_items(self.schema, composed)
        except HydraCompositionError as error:
            self.problems.append(Problem(self.file.shown, f"cannot be composed: {error}"))
            raise ConfigError(fold_consequences(self.problems)) from None
        for override in refused:
            where = f"override ~{override.deletes}"
            if override.deletes is not None:
                self.problems.append(Problem(override.deletes, "no such entry to delete", where))
            for leaf in override.leaves:
                above = self.schema.list_above(leaf.path) or leaf.path
                items = plural(len(value_at(composed, above) or ()), "item")
                self.problems.append(Problem(leaf.written, f"there is no such item: {above} has {items}", leaf.where))
        return self.schema.complete(composed, defaults), Provenance([*layers, *overrides.values])

    def _with_known(
        self, layers: list[Layer], overrides: Sequence[Layer], trees: dict[str, dict[str, Any]]
    ) -> list[Layer]:
        """The layers with those of known datasets and examples, which Hydra merges as a part of the file's body."""
        body = next(at for at, layer in enumerate(layers) if layer.kind == "file")
        known, problems = known_layer(self.schema, layers, body, overrides)
        self.problems += problems
        own = (*layers[body:], *overrides)
        implied = [known, example_layer(self.schema, own)]
        if is_of_areal(own):
            implied.append(script_layer(self.schema, own, known_name(self.schema, (*layers, *overrides))))
        added = [layer for layer in implied if layer.leaves]
        if added:
            trees[ROOT] = nested((leaf.path, leaf.value) for layer in (*added, layers[body]) for leaf in layer.leaves)
        return [*layers[:body], *added, *layers[body:]]

    def _layer(self, files: CompositionFiles, name: str, package: str, changed_paths: set[str]) -> Layer:
        """One file: read and checked, without invalid values, and without dependent keys of what the command line
        sets."""
        file, body = files.part(name)
        read = LayerReader(self.schema, lambda line: f"{file.shown}:{line}", package).read(YamlNode(body, 1))
        choice = files.choice_of(name)
        self.problems += [self.hints.for_problem(problem, package, choice) for problem in read.problems]
        self.foreign += read.foreign
        values = {leaf.path: leaf.value for leaf in read.leaves} if name == ROOT else {}
        dependents = set(dependents_of(values, self.dependents, changed_paths))
        leaves = tuple(leaf for leaf in read.leaves if leaf.path not in dependents)
        return Layer(self._kind(files, name), leaves)

    def _kind(self, files: CompositionFiles, name: str) -> LayerKind:
        if name == ROOT:
            return "file"
        if name in files.built_on(files.chosen_files()):
            return "group of the command line"
        if files.by_schema() and name in files.built_on([f"experiment/{self.experiment}"]):
            return "group of the schema"
        return "group of the file"

    def _opened(self, layers: Sequence[Layer]) -> set[str]:
        """The optional sections that a layer sets, or sets a key in."""
        return {
            section
            for layer in layers
            for leaf in layer.leaves
            for section in self.schema.optional_above(leaf.path)
            if section != leaf.path or isinstance(leaf.value, dict)
        }

    def _allocate(self, values: dict[str, Any], provenance: Provenance) -> None:
        """Adds problems of the allocation; the plan reports what this machine lacks."""
        wrong = {problem.key for problem in self.problems}
        facts = {"config": build_config(self.schema.cls, values), "machine": self.machine or detect_machine()}
        for problem in run_checks(ALLOCATION_CHECKS, facts, Stage.INVALID):
            keys = (problem.key, *problem.also)
            if wrong.isdisjoint(keys):
                origins = [origin for key in keys if (origin := provenance.origin(key)) is not None]
                self.problems.append(replace(problem, where=origins[0].where if origins else ""))
