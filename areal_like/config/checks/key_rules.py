"""The rules that keys declare themselves: copies of other keys, values that a start refuses, values that a run does not
read."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.models import trained_models
from areal_like.config.dotted_path import value_of
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.fields import KeyRule
from areal_like.config.interpolation import WHOLE
from areal_like.config.problems import Problem, Stage
from areal_like.config.schema import Key, Schema, Section

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

PACKAGE = f"{__name__.partition('.')[0]}."
MODELS = ("actor", "ref", "critic", "model")


def copied_keys(schema: Schema) -> Iterator[tuple[str, str]]:
    """Each key that must follow another, and that key."""
    for entry, rule in _rules(schema):
        if rule.stage is Stage.INVALID and isinstance(entry, Key) and (fact := followed_key(entry)):
            yield entry.path, fact


def differing_copies(get: Callable[[str], Any], schema: Schema) -> Iterator[Problem]:
    for copy, fact in copied_keys(schema):
        there, truth = get(copy), get(fact)
        if there is not None and truth is not None and there != truth:
            message = f"is {there!r}, but {fact} is {truth!r}; they must agree: leave {copy} out"
            yield Problem(copy, message, also=(fact,))


def refused_values(config: "BaseExperimentConfig") -> Iterator[Problem]:
    return _broken(config, Stage.CANNOT_START)


def unread_values(config: "BaseExperimentConfig") -> Iterator[Problem]:
    return _broken(config, Stage.NO_EFFECT)


def _broken(config: "BaseExperimentConfig", stage: Stage) -> Iterator[Problem]:
    """Not of models that are not loaded. A value that follows another key is reported there alone."""
    schema = Schema.of(type(config))
    unused = {*MODELS} - {name for name, _ in trained_models(config)}
    for entry, rule in _rules(schema):
        if rule.stage is not stage or entry.path.partition(".")[0] in unused or not _applies(rule, entry, config):
            continue
        for path in _changed(schema, entry, config):
            value = value_of(config, path)
            if value is not None and value not in rule.allowed:
                yield Problem(path, _message(rule, entry, config, value))


def _rules(schema: Schema) -> Iterator[tuple[Key | Section, KeyRule]]:
    """Not of a section of this package that a user's class has once more: the user's code reads that one."""
    ours = next(base for base in schema.cls.__mro__ if base in EXPERIMENTS.values())
    names = {*Schema.of(ours).names()}
    for entry, rule in schema.rules:
        is_users = entry.owner is not None and not entry.owner.__module__.startswith(PACKAGE)
        if is_users or entry.path in names:
            yield entry, rule


def _applies(rule: KeyRule, entry: Key | Section, config: "BaseExperimentConfig") -> bool:
    if rule.kinds and not any(isinstance(config, EXPERIMENTS[kind]) for kind in rule.kinds):
        return False
    if not rule.unless:
        return True
    other = value_of(config, other_key(rule, entry.path))
    return other not in rule.unless_is if rule.unless_is else not other


def other_key(rule: KeyRule, path: str) -> str:
    """The dotted key that the rule of a key at `path` depends on."""
    above = path.rpartition(".")[0]
    return rule.unless if "." in rule.unless or not above else f"{above}.{rule.unless}"


def _message(rule: KeyRule, entry: Key | Section, config: "BaseExperimentConfig", value: Any) -> str:
    if rule.stage is Stage.CANNOT_START:
        return rule.reason.replace("{}", str(value))
    if not rule.unless:
        return f"has no effect: {rule.reason}"
    other = other_key(rule, entry.path)
    why = f", {rule.reason}" if rule.reason else ""
    return f"has no effect: {other} is {_shown(value_of(config, other))}{why}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if value in ("", [], {}):
        return "empty"
    return f"{value:g}" if isinstance(value, float) else str(value)


def changed_keys(config: "BaseExperimentConfig", path: str) -> Iterator[str]:
    """The keys at or below a path whose value differs from the (resolved) default."""
    schema = Schema.of(type(config))
    entry = schema.keys.get(path) or schema.sections.get(path)
    return _changed(schema, entry, config) if entry is not None else iter(())


def _changed(schema: Schema, entry: Key | Section, config: "BaseExperimentConfig") -> Iterator[str]:
    if "[]" in entry.path:
        yield from _changed_in_items(entry, config)
    elif isinstance(entry, Key):
        if _differs(entry, config):
            yield entry.path
    elif entry.default_null:
        if value_of(config, entry.path) is not None:
            yield entry.path
    else:
        below = (key for path, key in schema.keys.items() if path.startswith(f"{entry.path}.") and "[]" not in path)
        yield from (key.path for key in below if _differs(key, config))


def _changed_in_items(entry: Key | Section, config: "BaseExperimentConfig") -> Iterator[str]:
    """In the items of a list of sections."""
    place, _, below = entry.path.partition("[].")
    default = entry.default if isinstance(entry, Key) else None
    for index in range(len(value_of(config, place) or ())):
        path = f"{place}.{index}.{below}"
        if value_of(config, path) not in (None, default):
            yield path


def _differs(key: Key, config: "BaseExperimentConfig") -> bool:
    """Not below a section that is null."""
    above = key.path.rpartition(".")[0]
    if above and value_of(config, above) is None:
        return False
    fact = followed_key(key)
    return bool(value_of(config, key.path) != (value_of(config, fact) if fact else key.default))


def followed_key(key: Key) -> str:
    """The key that the default of this one names; empty if it names none."""
    reference = WHOLE.fullmatch(key.default) if isinstance(key.default, str) else None
    return reference[1] if reference else ""
